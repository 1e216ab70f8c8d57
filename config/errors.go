package config

import (
	"errors"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// ErrConfig is wrapped by every *Error.
var ErrConfig = errors.New("configuration is not valid")

// Problem is one thing that is wrong in a configuration: the path of the setting,
// such as delay.bucket.resolution, where its value came from, and what was
// expected. It never contains a URL.
type Problem = topology.Problem

// Error lists everything that is wrong in a configuration, up to 100 problems.
type Error struct {
	File     string // empty without one
	Problems []Problem
}

func (e *Error) Error() string {
	text := yamldoc.Problems(e.Problems).String()
	if e.File != "" {
		text = e.File + ": " + text
	}
	return text
}

// Unwrap makes errors.Is(err, ErrConfig) true.
func (e *Error) Unwrap() error { return ErrConfig }
