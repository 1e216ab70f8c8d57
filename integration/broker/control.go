package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Stop stops the broker gracefully. It keeps its data and its port for Start.
func (b *Broker) Stop(ctx context.Context) error {
	return b.control(func(s server) error { return s.stop(ctx) })
}

// Kill kills the broker, which simulates a crash.
func (b *Broker) Kill(ctx context.Context) error {
	return b.control(func(s server) error { return s.kill(ctx) })
}

// Pause freezes the broker while its connections stay open, which simulates a network failure.
func (b *Broker) Pause(ctx context.Context) error {
	return b.control(func(s server) error { return s.pause(ctx) })
}

// Resume undoes Pause.
func (b *Broker) Resume(ctx context.Context) error {
	return b.control(func(s server) error { return s.resume(ctx) })
}

// Start starts the broker after Stop or Kill, with the same data and URL, and returns when it accepts connections.
func (b *Broker) Start(ctx context.Context) error {
	return b.control(func(s server) error {
		if err := s.start(ctx); err != nil {
			return err
		}
		return b.waitReady(ctx)
	})
}

// Restart calls Stop and then Start.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.Stop(ctx); err != nil {
		return err
	}
	return b.Start(ctx)
}

// Ctl runs rabbitmqctl on the broker and returns its standard output.
func (b *Broker) Ctl(ctx context.Context, args ...string) (string, error) {
	s, err := b.ours()
	if err != nil {
		return "", err
	}
	out, err := s.ctl(ctx, args)
	if err != nil {
		return out, fmt.Errorf("rabbitmqctl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// CtlCommand returns a shell command that runs rabbitmqctl in the broker's container. Use it if rabbitmqctl needs
// standard input. It returns an error if the broker is not a container.
func (b *Broker) CtlCommand() (string, error) {
	s, err := b.ours()
	if err != nil {
		return "", err
	}
	c, ok := s.(*container)
	if !ok {
		return "", errors.New("the broker does not run in a container")
	}
	if _, err := exec.LookPath("docker"); err != nil {
		return "", err
	}
	return "docker exec -i " + c.running.GetContainerID() + " rabbitmqctl", nil
}

// MemoryBytes returns the memory of the broker's process as measured by the operating system (RSS).
func (b *Broker) MemoryBytes(ctx context.Context) (int64, error) {
	out, err := b.Ctl(ctx, "--silent", "status", "--formatter", "json")
	if err != nil {
		return 0, err
	}
	var status struct {
		Memory struct {
			Total struct {
				RSS int64 `json:"rss"`
			} `json:"total"`
		} `json:"memory"`
	}
	// The output may contain warnings before the JSON object.
	if start := strings.IndexByte(out, '{'); start > 0 {
		out = out[start:]
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return 0, fmt.Errorf("rabbitmqctl status: the output is not a valid JSON object: %w", err)
	}
	if status.Memory.Total.RSS <= 0 {
		return 0, fmt.Errorf("rabbitmqctl status has no memory.total.rss")
	}
	return status.Memory.Total.RSS, nil
}

// ProcessID returns the ID of the broker's process or, for a container, of the container's first process, as the
// machine that runs it numbers them.
func (b *Broker) ProcessID(ctx context.Context) (int, error) {
	s, err := b.ours()
	if err != nil {
		return 0, err
	}
	return s.processID(ctx)
}

func (b *Broker) ours() (server, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.source == Environment {
		return nil, ErrNotOurs
	}
	if b.server == nil || b.closed {
		return nil, fmt.Errorf("broker: closed")
	}
	return b.server, nil
}

func (b *Broker) control(do func(server) error) error {
	s, err := b.ours()
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := do(s); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	return nil
}
