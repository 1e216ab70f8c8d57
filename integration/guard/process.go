package guard

import (
	"context"
	"os"
	"strconv"
	"sync"
)

// A Process is a server process under a guard. Its number, which is its group's too,
// stays its own until what is left of the group was killed; nothing is signalled by
// it after that.
type Process struct {
	guard *Guard
	pid   int
	ended chan struct{} // closed when it has ended and was waited for
	err   error         // of waiting; read it after ended
	clear error         // of taking it from the guard; likewise

	mu   sync.Mutex
	gone bool // the system may give the number to another
}

// Ended is closed when the process has ended, and what it left in its group.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ID returns the number by which the system knows the process.
func (p *Process) ID() int { return p.pid }

// Wait waits for the process to end, and kills it when ctx ends first. The
// error is how it ended, like that of exec.Cmd.Wait.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		_ = p.ifOurs(p.killGroup) // it may have ended meanwhile
		<-p.ended
	}
	if p.clear != nil {
		return p.clear
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.err
}

// Stop asks the process to end by a signal, and kills it when it has not ended
// before ctx has.
func (p *Process) Stop(ctx context.Context, s os.Signal) error {
	_ = p.ifOurs(func() error { return p.signal(s) }) // it may have ended by itself
	_ = p.Wait(ctx)                                   // how it ends when asked to is its own affair
	return ctx.Err()
}

// Kill kills the process and its group, and waits for its end.
func (p *Process) Kill() error {
	_ = p.ifOurs(p.killGroup) // it may have ended by itself
	<-p.ended
	return p.clear
}

// Suspend stops the process and its group without ending them. The error is
// os.ErrProcessDone when they have ended.
func (p *Process) Suspend() error { return p.ifOurs(p.suspendGroup) }

// Continue takes Suspend back.
func (p *Process) Continue() error { return p.ifOurs(p.continueGroup) }

// ifOurs signals the process as long as its number is its own.
func (p *Process) ifOurs(signal func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return os.ErrProcessDone
	}
	return signal()
}

// reap waits for the end of the process. It ends what it left in its group, and takes
// it from the guard, before wait gives its number back. Where the end cannot be
// awaited without that, what it left is let be.
func (p *Process) reap(wait func() error) {
	defer close(p.ended)
	held := awaitEnd(p.pid)
	if !held {
		p.err = wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if held {
		_ = p.killGroup() // most leave nothing
	}
	p.clear = p.guard.tell("forget", strconv.Itoa(p.pid))
	if held {
		p.err = wait()
	}
	p.gone = true
}
