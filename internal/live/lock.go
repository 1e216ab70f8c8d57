package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// LateBindings reports whether a broker of the given version may confirm a binding before it routes by it. From 3.12 to
// 4.2, brokers with Mnesia commit the binding first, and the topic exchange's routing table in a second transaction. If
// a client creates the same binding in between, the broker confirms immediately that it exists. During a rolling
// upgrade, even an older node may see a binding that a newer node is still creating. LateBindings returns true for a
// version that cannot be parsed.
func LateBindings(version string) bool {
	return !plan.ParseVersion(version).AtLeast(4, 3, 0)
}

const (
	// lockWait is how long the holder of the lock is assumed to be working. Creating the bindings takes a second or
	// two, but the lock of a machine that has died is kept until the broker misses its heartbeats.
	lockWait = 15 * time.Second
	// creationWait is how long a lock holder that creates a single queue is assumed to be working.
	creationWait   = 5 * time.Second
	firstLockPause = 50 * time.Millisecond
	// maxLockPause is the longest pause between two attempts to acquire the lock. It is long because each attempt
	// closes a channel, and many waiting clients would otherwise slow down the one that holds the lock.
	maxLockPause = 3 * time.Second
	// unlockTimeout bounds the release of a lock on a broker that does not answer. The broker then releases the lock
	// when the connection closes.
	unlockTimeout = 5 * time.Second
)

// ErrUnlocked means that an operation has to run without the lock that prevents other clients from running it at the
// same time.
var ErrUnlocked = errors.New("could not acquire the lock")

// errLocked means that another connection held the lock for longer than the time limit.
var errLocked = errors.New("another connection has held the lock for too long")

// never is a condition for lockUnless and take that makes them acquire the lock in any case.
func never() (bool, error) { return false, nil }

// lockUnless acquires the lock, unless done reports that there is nothing to do. It calls done before each attempt. If
// there is nothing to do, unlock is nil. Without permission for the lock's queue, it continues without the lock and
// calls opts.Unlocked.
//
// If another client holds the lock for too long, lockUnless tries to acquire a second lock instead, and after that a
// third one, and so on. Without these, all waiting clients would continue at the same time, and overload a broker that
// is already slow. lockUnless calls opts.Unlocked for such a lock as well.
func lockUnless(ctx context.Context, conn Conn, opts ApplyOptions, done func() (bool, error)) (unlock func(), err error) {
	s := channels.New(conn)
	for passed := 0; ; passed++ {
		name := naming.LockQueue(opts.Prefix)
		if passed > 0 {
			name = fmt.Sprintf("%s.%d", name, passed+1)
		}
		held, err := take(ctx, s, name, lockWait, done)
		switch {
		case err == nil && !held:
			s.Close()
			return nil, nil
		case err == nil:
			if passed > 0 {
				unlocked(opts, errLocked)
			}
			return func() { releaseLock(s, name) }, nil
		case errors.Is(err, errLocked):
		case !isConnectionLost(err): // the error concerns only this lock
			unlocked(opts, err)
			return func() {}, nil
		default:
			s.Close()
			return nil, err
		}
	}
}

// LockCreation keeps other clients from creating a queue, and from using a queue that is still being created. It is
// needed because the broker shows a quorum queue before the queue accepts messages, and before RabbitMQ 4.3 even before
// the queue has its TTL. LockCreation waits up to 5 s for the lock. After that, or without the permission to configure
// naming.CreationLock, the error wraps ErrUnlocked. The caller can then create the queue without the lock.
func LockCreation(ctx context.Context, conn Conn, prefix, queue string) (unlock func(), err error) {
	s := channels.New(conn)
	name := naming.CreationLock(prefix, queue)
	_, err = take(ctx, s, name, creationWait, never)
	if err == nil {
		return func() { releaseLock(s, name) }, nil
	}
	s.Close()
	if errors.Is(err, errLocked) || !isConnectionLost(err) {
		err = fmt.Errorf("%w: %w", ErrUnlocked, err)
	}
	return nil, err
}

// take tries to acquire a lock until it holds it. Before each attempt it calls done, and stops if done reports that
// there is nothing to do. If another client still holds the lock after the given duration, take returns errLocked.
func take(ctx context.Context, s *channels.Session, name string, within time.Duration, done func() (bool, error)) (held bool, err error) {
	deadline := time.Now().Add(within)
	for try := 1; ; try++ {
		if ok, err := done(); ok || err != nil {
			return false, err
		}
		// Do not cut an attempt off at the deadline, because it may already have acquired the lock.
		err := s.Do(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, false, false, true, false, amqp.Table{argument.QueueType: string(topology.Classic)})
			return err
		})
		switch {
		case err == nil:
			return true, nil
		case context.Cause(ctx) != nil, !channels.IsCode(err, amqp.ResourceLocked):
			return false, fmt.Errorf("lock %s: %w", name, err)
		case time.Now().After(deadline):
			return false, errLocked
		}
		if wait.For(ctx, wait.Backoff(firstLockPause, maxLockPause, try)) != nil {
			return false, context.Cause(ctx)
		}
	}
}

func unlocked(opts ApplyOptions, why error) {
	if opts.Unlocked != nil {
		opts.Unlocked(why)
	}
}

// releaseLock deletes the lock's queue. It works even after the context with which the lock was acquired has ended.
func releaseLock(s *channels.Session, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	_, _ = channels.DeleteQueue(ctx, s, name, false)
	s.Close()
}
