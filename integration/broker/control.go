package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Stop ends the broker in good order. Its data and its port are kept for
// Start.
func (b *Broker) Stop(ctx context.Context) error {
	return b.control(func(s server) error { return s.stop(ctx) })
}

// Kill ends the broker as a crash would.
func (b *Broker) Kill(ctx context.Context) error {
	return b.control(func(s server) error { return s.kill(ctx) })
}

// Pause keeps the broker from doing anything while its connections stay open,
// as a dead network would.
func (b *Broker) Pause(ctx context.Context) error {
	return b.control(func(s server) error { return s.pause(ctx) })
}

// Resume takes Pause back.
func (b *Broker) Resume(ctx context.Context) error {
	return b.control(func(s server) error { return s.resume(ctx) })
}

// Start starts the broker after Stop or Kill, with the data and under the
// URL that it had, and returns when it accepts connections.
func (b *Broker) Start(ctx context.Context) error {
	return b.control(func(s server) error {
		if err := s.start(ctx); err != nil {
			return err
		}
		return b.waitReady(ctx)
	})
}

// Restart is Stop and Start.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.Stop(ctx); err != nil {
		return err
	}
	return b.Start(ctx)
}

// Ctl runs rabbitmqctl on the broker with args and returns what it printed on
// standard output.
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

// CtlCommand is the shell's command that runs rabbitmqctl in the broker's container,
// for what needs its standard input. A broker that is no container has none.
func (b *Broker) CtlCommand() (string, error) {
	s, err := b.ours()
	if err != nil {
		return "", err
	}
	c, ok := s.(*container)
	if !ok {
		return "", errors.New("the broker is no container")
	}
	if _, err := exec.LookPath("docker"); err != nil {
		return "", err
	}
	return "docker exec -i " + c.running.GetContainerID() + " rabbitmqctl", nil
}

// MemoryBytes returns the memory of the broker's process as the operating
// system counts it (RSS).
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
	// Warnings may stand before the JSON object.
	if start := strings.IndexByte(out, '{'); start > 0 {
		out = out[start:]
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return 0, fmt.Errorf("rabbitmqctl status printed no JSON object: %w", err)
	}
	if status.Memory.Total.RSS <= 0 {
		return 0, fmt.Errorf("rabbitmqctl status has no memory.total.rss")
	}
	return status.Memory.Total.RSS, nil
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
