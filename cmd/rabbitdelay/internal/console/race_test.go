//go:build race

package console

// slowdown reduces the size of jobs that take long with the race detector.
const slowdown = 2
