package dlx

import "time"

// Resolution returns one second, to which delays are rounded up.
func (s *Levels) Resolution() time.Duration { return s.layout.resolution }
