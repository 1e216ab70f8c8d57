//go:build !linux

package guard

// awaitEnd is only supported on Linux.
func awaitEnd(int) bool { return false }
