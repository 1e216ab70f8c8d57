package live

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// LateBindings tells whether a broker of that version may answer a bind before
// it routes by the binding. From 3.12 to 4.2 one with Mnesia commits the
// binding and only then, in a second transaction, what its topic exchange
// routes by: a client that makes the same binding in between is told at once
// that it exists. In a cluster whose nodes are being replaced an older node,
// too, may see what a newer one is binding. A version that cannot be read
// counts as one that may.
func LateBindings(version string) bool {
	return !topology.ParseVersion(version).AtLeast(4, 3, 0)
}

const (
	// lockWait bounds the wait for the lock. Binding takes a second or two, but the
	// lock of a machine that died stays until the broker misses its heartbeats.
	lockWait       = 15 * time.Second
	firstLockPause = 25 * time.Millisecond
	maxLockPause   = 400 * time.Millisecond
	// unlockTimeout is for a broker that does not answer: the lock then ends with
	// the connection.
	unlockTimeout = 5 * time.Second
)

// errLocked says that the lock could not be had for too long.
var errLocked = errors.New("another connection has held the lock for too long")

// lock keeps other connections from binding, where the broker needs it.
func lock(ctx context.Context, conn Conn, opts ApplyOptions) (unlock func(), err error) {
	if c, ok := conn.(*amqp.Connection); ok {
		if version, _ := c.Properties["version"].(string); !LateBindings(version) {
			return func() {}, nil
		}
	}
	return lockUnless(ctx, conn, opts, func() (bool, error) { return false, nil })
}

// lockUnless takes the lock, unless done says first that there is nothing to do,
// which it asks again after each wait; unlock then is nil. Without the right to the
// lock's queue, or when another has it for too long, it goes on all the same, and
// says so.
func lockUnless(ctx context.Context, conn Conn, opts ApplyOptions, done func() (bool, error)) (unlock func(), err error) {
	s := &session{conn: conn}
	name := topology.LockQueue(opts.Prefix)
	deadline := time.Now().Add(lockWait)
	for pause := firstLockPause; ; pause = min(2*pause, maxLockPause) {
		if ok, err := done(); ok || err != nil {
			s.close()
			return nil, err
		}
		// The deadline does not end a try: its answer would find nobody.
		err := declareLock(ctx, s, name)
		if err == nil {
			return func() { releaseLock(s, name) }, nil
		}
		e, refused := errors.AsType[*amqp.Error](err)
		locked := refused && e.Code == amqp.ResourceLocked
		switch {
		case context.Cause(ctx) != nil, !refused, isConnectionLost(err):
			return nil, fmt.Errorf("lock %s: %w", name, err)
		case locked && time.Now().After(deadline):
			err = errLocked
		case locked:
			if err := sleep(ctx, pause/2+rand.N(pause)); err != nil {
				return nil, err
			}
			continue
		}
		if opts.Unlocked != nil {
			opts.Unlocked(err)
		}
		return func() {}, nil
	}
}

func declareLock(ctx context.Context, s *session, name string) error {
	return s.do(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, false, false, true, false, amqp.Table{topology.ArgQueueType: string(topology.Classic)})
		return err
	})
}

// releaseLock works also when the context has ended under which the lock was taken.
func releaseLock(s *session, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	_ = s.do(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
	s.close()
}
