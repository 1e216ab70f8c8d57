package guard

import (
	"context"
	"os"
	"strconv"
)

// A Process is a server process under a guard.
type Process struct {
	guard *Guard
	pid   int
	ended chan struct{} // closed when it has ended and was waited for
	err   error         // of waiting; read it after ended
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the process to end, and kills it when ctx ends first. The
// error says how it ended, like that of exec.Cmd.Wait.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		_ = killGroup(p.pid) // it may have ended meanwhile
		<-p.ended
	}
	if err := p.clear(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.err
}

// Stop asks the process to end by a signal, and kills it when it has not ended
// before ctx has.
func (p *Process) Stop(ctx context.Context, s os.Signal) error {
	_ = signal(p.pid, s) // it may have ended by itself
	_ = p.Wait(ctx)      // how it ends when asked to is its own affair
	return ctx.Err()
}

// Kill kills the process and its group, and waits for its end.
func (p *Process) Kill() error {
	_ = killGroup(p.pid) // it may have ended by itself
	<-p.ended
	return p.clear()
}

// Suspend stops the process and its group without ending them.
func (p *Process) Suspend() error { return suspendGroup(p.pid) }

// Continue takes Suspend back.
func (p *Process) Continue() error { return continueGroup(p.pid) }

// clear ends what the process left in its group and takes it from the guard:
// the system may give its id to another from now on.
func (p *Process) clear() error {
	_ = killGroup(p.pid) // most leave nothing
	return p.guard.tell("forget", strconv.Itoa(p.pid))
}
