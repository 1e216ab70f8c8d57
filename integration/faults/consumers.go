package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// consumers manages the consumer processes of a run. It replaces a process that ends.
type consumers struct {
	dir string

	mu      sync.Mutex
	procs   []*process
	closing bool
	errs    []error // errors of processes that ended unexpectedly

	done sync.WaitGroup
}

// process is a slot for a consumer process. When a process ends, a new one takes its slot.
type process struct {
	cfg     consumerConfig
	orders  io.Writer
	current *exec.Cmd
	ended   chan struct{} // closed when the current one has ended
	starts  int
}

// startConsumers starts one process for each configuration. It puts the files of the processes into dir.
func startConsumers(dir string, cfgs []consumerConfig) (*consumers, error) {
	cs := &consumers{dir: dir}
	for i, cfg := range cfgs {
		cfg.Number = i
		cfg.Seen = filepath.Join(dir, fmt.Sprintf("seen-%d", i))
		cfg.Log = filepath.Join(dir, fmt.Sprintf("consumer-%d.log", i))
		p := &process{cfg: cfg}
		cs.procs = append(cs.procs, p)
		if err := cs.start(p); err != nil {
			return nil, errors.Join(err, cs.close())
		}
	}
	return cs, nil
}

// start starts a process and replaces it when it ends.
func (cs *consumers) start(p *process) error {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closing {
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(p.cfg)
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), EnvConsumer+"="+string(raw))
	output, err := os.OpenFile(p.cfg.Log+".stderr", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	// When this process exits, the pipe closes, and then the consumer exits too.
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	p.orders, p.current, p.ended = pipe, cmd, ended
	p.starts++
	cs.done.Go(func() {
		err := cmd.Wait()
		close(ended)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() >= 0 { // it exited and was not killed by a signal
			cs.mu.Lock()
			cs.errs = append(cs.errs, fmt.Errorf("consumer process %d: %w: %s", p.cfg.Number, err, lastLine(p.cfg.Log+".stderr")))
			tooMany := len(cs.errs) > 20
			cs.mu.Unlock()
			if tooMany {
				return
			}
		}
		if err := cs.start(p); err != nil {
			cs.mu.Lock()
			cs.errs = append(cs.errs, err)
			cs.mu.Unlock()
		}
	})
	return nil
}

// lastLine returns the last line of a file, which explains why a process ended.
func lastLine(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// order sends an order to a process. It returns a channel that is closed when the process ends.
func (cs *consumers) order(aim int, what string) (ended <-chan struct{}, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	p := cs.procs[aim%len(cs.procs)]
	_, err = io.WriteString(p.orders, what+"\n")
	return p.ended, err
}

// kill kills a process. It does nothing if the process has ended.
func (cs *consumers) kill(aim int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	_ = cs.procs[aim%len(cs.procs)].current.Process.Kill()
}

// starts returns how many processes have been started.
func (cs *consumers) starts() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	n := 0
	for _, p := range cs.procs {
		n += p.starts
	}
	return n
}

// close stops the processes, gracefully at first. It returns the errors of processes that ended unexpectedly.
func (cs *consumers) close() error {
	cs.mu.Lock()
	cs.closing = true
	procs := cs.procs
	for _, p := range procs {
		if p.orders != nil {
			_, _ = io.WriteString(p.orders, orderStop+"\n") // it may have ended
		}
	}
	cs.mu.Unlock()
	deadline, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	for _, p := range procs {
		if p.ended == nil {
			continue
		}
		select {
		case <-p.ended:
		case <-deadline.Done():
			_ = p.current.Process.Kill()
		}
	}
	cs.done.Wait()
	return errors.Join(cs.errs...)
}

// readSeen reads the handler runs that all processes recorded.
func (cs *consumers) readSeen() ([]Seen, error) {
	var all []Seen
	for _, p := range cs.procs {
		f, err := os.Open(p.cfg.Seen)
		if errors.Is(err, os.ErrNotExist) {
			continue // the process never received a message
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var s Seen
			var due, at int64
			if _, err := fmt.Sscan(lines.Text(), &s.ID, &s.Attempt, &due, &at); err != nil {
				_ = f.Close()
				return nil, fmt.Errorf("%s: %q: %w", p.cfg.Seen, lines.Text(), err)
			}
			s.Due, s.At = time.UnixMicro(due), time.UnixMicro(at)
			all = append(all, s)
		}
		_ = f.Close()
		if err := lines.Err(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
