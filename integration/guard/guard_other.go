//go:build !unix

package guard

import (
	"errors"
	"os"
	"os/exec"
)

// New returns a guard that does nothing. On this system, servers are only cleaned up if the process ends normally.
func New() (*Guard, error) {
	return &Guard{pipe: discard{}, wait: func() error { return nil }}, nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

var errSystem = errors.New("guard: server processes can be started on Unix systems only")

// Start returns an error, because server processes are started on Unix systems only.
func (*Guard) Start(*exec.Cmd) (*Process, error) { return nil, errSystem }

func (*Process) killGroup() error       { return errSystem }
func (*Process) suspendGroup() error    { return errSystem }
func (*Process) continueGroup() error   { return errSystem }
func (*Process) signal(os.Signal) error { return errSystem }
