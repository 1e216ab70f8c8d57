package guard

import (
	"context"
	"os"
	"strconv"
	"sync"
)

// A Process is a server process under a guard. Its process ID is also the ID of its process group. The ID stays
// reserved until the rest of the group has been killed, and no signal is sent to it after that.
type Process struct {
	guard *Guard
	pid   int
	ended chan struct{} // closed when the process has ended and was reaped
	err   error         // result of waiting; read it after ended is closed
	clear error         // error of removing the process from the guard; read it after ended is closed

	mu   sync.Mutex
	gone bool // the system may reuse the process ID
}

// Ended returns a channel that is closed when the process and the rest of its group have ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ID returns the process ID.
func (p *Process) ID() int { return p.pid }

// Wait waits for the process to end, and kills it if ctx ends first. The error says how the process ended, like that of
// exec.Cmd.Wait.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
	case <-ctx.Done():
		_ = p.ifOurs(p.killGroup) // it may have ended in the meantime
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

// Stop asks the process to end with a signal, and kills it if it has not ended when ctx ends.
func (p *Process) Stop(ctx context.Context, s os.Signal) error {
	_ = p.ifOurs(func() error { return p.signal(s) }) // it may have ended by itself
	_ = p.Wait(ctx)                                   // its exit status does not matter
	return ctx.Err()
}

// Kill kills the process and its group, and waits for the process to end.
func (p *Process) Kill() error {
	_ = p.ifOurs(p.killGroup) // it may have ended by itself
	<-p.ended
	return p.clear
}

// Suspend suspends the process and its group. It returns os.ErrProcessDone if they have ended.
func (p *Process) Suspend() error { return p.ifOurs(p.suspendGroup) }

// Continue undoes Suspend.
func (p *Process) Continue() error { return p.ifOurs(p.continueGroup) }

// ifOurs calls signal while the process ID still belongs to the process.
func (p *Process) ifOurs(signal func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return os.ErrProcessDone
	}
	return signal()
}

// reap waits for the process to end. Before wait releases the process ID, it kills the rest of the process group and
// removes the process from the guard. On systems that cannot wait without releasing the ID, it does not kill the rest.
func (p *Process) reap(wait func() error) {
	defer close(p.ended)
	held := awaitEnd(p.pid)
	if !held {
		p.err = wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if held {
		_ = p.killGroup() // usually there are no others
	}
	p.clear = p.guard.tell("forget", strconv.Itoa(p.pid))
	if held {
		p.err = wait()
	}
	p.gone = true
}
