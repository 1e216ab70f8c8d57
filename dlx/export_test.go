package dlx

import "time"

// Resolution returns the unit to which the layout rounds up delays.
func (s *Levels) Resolution() time.Duration { return s.layout.resolution }
