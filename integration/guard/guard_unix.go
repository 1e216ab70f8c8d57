//go:build unix

package guard

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// script is the shell script that the guard process runs.
//
//go:embed guard.sh
var script string

// gate delays a started program until the guard knows it. It waits for a line and then executes the program, or exits
// if the pipe closes before that.
const gate = `IFS= read -r go && [ "$go" = go ] && exec "$@" </dev/null`

// New starts a guard process.
func New() (*Guard, error) {
	cmd := exec.Command("/bin/sh", "-c", script, "rabbitdelay-guard")
	cmd.Dir = "/" // so that it keeps no directory busy
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Do not pass on standard output and error, because go test waits for all processes that hold its own.
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("guard: cannot start /bin/sh: %w", err)
	}
	return &Guard{pipe: pipe, wait: cmd.Wait, kill: syscall.Kill}, nil
}

// Start starts cmd under the guard, which covers the process from its first instruction. The process has its own
// session, so that a Ctrl-C in the terminal does not reach it. cmd.Stdin must be nil, because the program has no input.
func (g *Guard) Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.Stdin != nil {
		return nil, fmt.Errorf("guard: %s: standard input must be nil", cmd.Path)
	}
	if cmd.Err != nil {
		return nil, cmd.Err
	}
	cmd.Args = append([]string{"/bin/sh", "-c", gate, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true

	gateEnd, ourEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	defer ourEnd.Close()
	cmd.Stdin = gateEnd
	err = cmd.Start()
	_ = gateEnd.Close()
	if err != nil {
		return nil, err
	}
	p := &Process{guard: g, pid: cmd.Process.Pid, ended: make(chan struct{})}
	err = g.watch(p.pid)
	go p.reap(cmd.Wait)
	if err == nil {
		_, err = ourEnd.WriteString("go\n")
	}
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	return p, nil
}

func (p *Process) killGroup() error     { return p.guard.kill(-p.pid, syscall.SIGKILL) }
func (p *Process) suspendGroup() error  { return p.guard.kill(-p.pid, syscall.SIGSTOP) }
func (p *Process) continueGroup() error { return p.guard.kill(-p.pid, syscall.SIGCONT) }

func (p *Process) signal(s os.Signal) error {
	number, ok := s.(syscall.Signal)
	if !ok {
		return fmt.Errorf("guard: %v is not a signal of this system", s)
	}
	return p.guard.kill(p.pid, number)
}
