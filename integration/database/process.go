package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/guard"
)

// Stop stops the server gracefully. It keeps its data and its port for Start.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return ErrNotOurs
	}
	if s.process == nil {
		return nil
	}
	err := errors.Join(s.engine.stopping(ctx, s.instance), s.process.Stop(ctx, s.engine.stopSignal()))
	s.process = nil
	return err
}

// Kill kills the server, which simulates a crash.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return ErrNotOurs
	}
	return s.kill()
}

func (s *Server) kill() error {
	if s.process == nil {
		return nil
	}
	err := errors.Join(s.engine.killed(s.instance), s.process.Kill())
	s.process = nil
	return err
}

// Start starts the server after Stop or Kill, with the same data and URL, and returns when it answers.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.engine == nil:
		return ErrNotOurs
	case s.closed:
		return errors.New("database: closed")
	case s.process != nil:
		return errors.New("database: already running")
	}
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	return s.start(ctx)
}

// Restart calls Stop and then Start.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	return s.Start(ctx)
}

// ProcessID returns the ID of the server's process. A server in a container has the ID of the docker command.
func (s *Server) ProcessID() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.engine == nil:
		return 0, ErrNotOurs
	case s.process == nil:
		return 0, errors.New("database: not running")
	}
	return s.process.ID(), nil
}

// Close stops the server and removes its directory. It does nothing if Start did not start the server, or if it has
// already been called.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil || s.closed {
		return nil
	}
	s.closed = true
	err := s.kill() // the data is no longer needed
	if s.instance.dir != "" {
		err = errors.Join(err, s.engine.removed(s.instance), s.instance.system.remove(s.instance.dir))
	}
	if err != nil {
		// Keep the guard running, because it tries again when the process ends.
		return fmt.Errorf("database: cleanup was incomplete: %w", err)
	}
	return s.guard.Dismiss()
}

// start runs the server's program and waits until it answers. It tries again if the server fails because remains of its
// killed predecessor are still in memory.
func (s *Server) start(ctx context.Context) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		err := s.launch(ctx, ticker)
		if err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "pre-existing shared memory block") {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

func (s *Server) launch(ctx context.Context, ticker *time.Ticker) error {
	p, err := s.run(s.engine.command(s.instance)...)
	if err != nil {
		return err
	}
	s.process = p
	for {
		err := s.engine.ready(ctx, s.instance)
		if err == nil {
			return nil
		}
		select {
		case <-p.Ended():
			err = fmt.Errorf("the server exited; the end of its log:\n%s", s.Log())
			return errors.Join(err, s.kill())
		case <-ctx.Done():
			err = fmt.Errorf("the server did not start: %w; the last attempt: %w; the end of its log:\n%s", ctx.Err(), err, s.Log())
			return errors.Join(err, s.kill())
		case <-ticker.C:
		}
	}
}

// run starts a program under the guard, in the server's account. It writes the program's output to the server's log.
func (s *Server) run(command ...string) (*guard.Process, error) {
	// Overwrite the log at each run, because only the last one is needed.
	output, err := os.Create(s.logFile())
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = s.instance.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+s.instance.dir)
	cmd.Stdout, cmd.Stderr = output, output
	s.instance.system.become(cmd)
	p, err := s.guard.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command[0], err)
	}
	return p, nil
}

// finish runs a program and waits until it exits.
func (s *Server) finish(ctx context.Context, command ...string) error {
	p, err := s.run(command...)
	if err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		return fmt.Errorf("%s: %w; the end of its output:\n%s", command[0], err, s.Log())
	}
	return nil
}

// write writes a file that the server's account can read into the server's directory.
func (s *Server) write(file, content string) error {
	path := filepath.Join(s.instance.dir, file)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return s.instance.system.own(path)
}

func (s *Server) logFile() string { return filepath.Join(s.instance.dir, "log") }

// Log returns the end of what the server has written to its log since it started.
func (s *Server) Log() string {
	const lines = 20
	content, err := os.ReadFile(s.logFile())
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// lookProgram finds a program in the path or in Debian's directory for servers, which is not in every user's path.
func lookProgram(program, debianPackage string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	path := "/usr/sbin/" + program
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return "", missing(program, debianPackage)
}

func missing(program, debianPackage string) error {
	return fmt.Errorf("%w: the program %s does not exist; install the package %s (`make setup` does)", ErrNotInstalled, program, debianPackage)
}
