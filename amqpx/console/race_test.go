//go:build race

package console

// slowdown shortens jobs that the race detector makes long.
const slowdown = 2
