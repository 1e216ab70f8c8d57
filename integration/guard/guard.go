// Package guard cleans up after a process that starts servers, no matter whether that process returns, is interrupted,
// panics or is killed with SIGKILL.
//
// A guard is a small child process in its own session. It reads from a pipe whose other end only this process holds.
// This process tells the guard what it has started. The pipe closes whenever this process ends, and then the guard
// kills the processes, removes the directories and containers, and ends.
package guard

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// A Guard keeps track of what this process has started, and cleans it up if the process ends without doing so. It is
// safe for concurrent use.
type Guard struct {
	mu      sync.Mutex
	pipe    io.WriteCloser
	wait    func() error
	kill    func(pid int, s syscall.Signal) error // the system call
	stopped bool
}

// ErrDismissed is returned by the methods of a Guard after Dismiss.
var ErrDismissed = errors.New("guard: already dismissed")

// watch makes the guard kill the process group that pid leads when this process ends.
func (g *Guard) watch(pid int) error { return g.tell("process", strconv.Itoa(pid)) }

// Directory makes the guard remove a directory with its contents when this process ends. The guard first unmounts any
// file systems that are mounted there.
func (g *Guard) Directory(path string) error { return g.tell("directory", path) }

// Container makes the guard remove a container with its volumes when this process ends, even if the container is
// running. It requires the docker command. Call it before creating the container, so that the guard covers the
// container from the beginning.
func (g *Guard) Container(name string) error { return g.tell("container", name) }

// Network makes the guard remove a Docker network, after the containers, when this process ends. Call it before
// creating the network.
func (g *Guard) Network(name string) error { return g.tell("network", name) }

// Dismiss stops the guard without any cleanup and waits for its end. Call it after cleaning up. Calling it again does
// nothing.
func (g *Guard) Dismiss() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil
	}
	g.stopped = true
	_, err := io.WriteString(g.pipe, "dismiss\n")
	return errors.Join(err, g.pipe.Close(), g.wait())
}

func (g *Guard) tell(verb, what string) error {
	if what == "" || strings.ContainsAny(what, "\n\x00") {
		return fmt.Errorf("guard: cannot watch over the %s %q: want one non-empty line", verb, what)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return ErrDismissed
	}
	if _, err := io.WriteString(g.pipe, verb+" "+what+"\n"); err != nil {
		return fmt.Errorf("guard: the guard process has exited: %w", err)
	}
	return nil
}
