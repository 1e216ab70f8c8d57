//go:build !race

package console

const slowdown = 1
