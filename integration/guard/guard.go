// Package guard cleans up after a process that starts servers, however that
// process ends: returned, interrupted, panicked or killed with SIGKILL.
//
// A guard is a small child process in a session of its own that reads from a
// pipe of which only this process holds the other end. While this process
// lives, it is told what was started. When the pipe closes, and it closes with
// the process whatever happened, the guard kills, removes and ends.
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

// A Guard knows what a process started and cleans it up when the process ends
// without having done so. It is safe for concurrent use.
type Guard struct {
	mu      sync.Mutex
	pipe    io.WriteCloser
	wait    func() error
	kill    func(pid int, s syscall.Signal) error // the system call
	stopped bool
}

// ErrDismissed is returned by the methods of a Guard after Dismiss.
var ErrDismissed = errors.New("guard: dismissed already")

// watch has the process group that pid leads killed when this process ends.
func (g *Guard) watch(pid int) error { return g.tell("process", strconv.Itoa(pid)) }

// Directory has a directory removed, with everything in it, when this process
// ends. What is mounted there is unmounted first.
func (g *Guard) Directory(path string) error { return g.tell("directory", path) }

// Container has a container removed, running or not, with its volumes, when
// this process ends. It needs the docker command. The container may be created
// after the call, so that no moment is left in which nobody would remove it.
func (g *Guard) Container(name string) error { return g.tell("container", name) }

// Network has a Docker network removed, after the containers, when this process
// ends. Like Container, it is called before the network is created.
func (g *Guard) Network(name string) error { return g.tell("network", name) }

// Dismiss ends the guard without cleaning anything, and waits for its end. The
// caller has cleaned up itself. Calling it again does nothing.
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
		return fmt.Errorf("guard: the guard process is gone: %w", err)
	}
	return nil
}
