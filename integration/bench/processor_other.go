//go:build !unix

package bench

import "time"

// ownProcessor is unknown here.
func ownProcessor() time.Duration { return 0 }
