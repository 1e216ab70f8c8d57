package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrLocked is the error if another connection drains the plugin. The connection of a
// machine that has gone counts until the broker misses its heartbeats.
var ErrLocked = errors.New("another process drains the plugin of this virtual host")

// The broker releases the lock of a killed process when it has found its connection
// closed.
const (
	lockWait  = 15 * time.Second
	lockPause = 250 * time.Millisecond
)

// Lock prevents others from draining until the connection ends: two at once would send
// everything twice. It needs permission to configure the queue PREFIX.plugin-drain, and
// waits up to 15 s for a lock that is held before it fails with ErrLocked.
func Lock(ctx context.Context, conn *amqp.Connection, prefix string) error {
	deadline := time.Now().Add(lockWait)
	tick := time.NewTicker(lockPause)
	defer tick.Stop()
	for {
		err := lockOnce(conn, lockQueue(prefix))
		if !errors.Is(err, ErrLocked) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lockQueue(prefix string) string { return prefix + ".plugin-drain" }

func lockOnce(conn *amqp.Connection, name string) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(name, false, true, true, false, amqp.Table{"x-queue-type": "classic"})
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.ResourceLocked {
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}
	return nil
}
