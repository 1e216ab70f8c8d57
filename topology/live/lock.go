package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/argument"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// LateBindings reports whether a broker of the given version may confirm a binding before it routes by it. From 3.12
// to 4.2, brokers with Mnesia commit the binding first, and commit what the topic exchange routes by in a second
// transaction. A client that makes the same binding in between is told immediately that it exists. During a rolling
// upgrade an older node may even see a binding that a newer node is still creating. For a version that cannot be
// parsed, LateBindings returns true.
func LateBindings(version string) bool {
	return !observed.ParseVersion(version).AtLeast(4, 3, 0)
}

const (
	// lockWait is how long the holder of the lock is assumed to be working. Binding takes a second or two, but the
	// lock of a machine that has died stays until the broker misses its heartbeats.
	lockWait = 15 * time.Second
	// creationWait is the same limit for the creation of a single queue.
	creationWait   = 5 * time.Second
	firstLockPause = 50 * time.Millisecond
	// maxLockPause keeps many waiting clients from slowing down the holder of the lock. Each of them looks for a
	// missing object between its attempts, which closes a channel.
	maxLockPause = 3 * time.Second
	// unlockTimeout bounds the release of a lock on a broker that does not answer. The lock then ends with the
	// connection.
	unlockTimeout = 5 * time.Second
)

// ErrUnlocked means that an operation has to run without the lock that prevents other clients from running it at the
// same time.
var ErrUnlocked = errors.New("no lock")

// errLocked means that another connection held the lock for longer than the time limit.
var errLocked = errors.New("another connection has held the lock for too long")

// never makes lockUnless and take acquire the lock in any case.
func never() (bool, error) { return false, nil }

// lockUnless takes the lock, unless done reports that there is nothing to do. It calls done before each attempt. If
// there is nothing to do, unlock is nil. Without permission for the lock's queue it continues without the lock, and
// tells opts.Unlocked. If another client has the lock for too long, lockUnless takes a second lock instead, and after
// that a third one. If all waiting clients continued at the same time, they would overload a broker that is already
// slow.
func lockUnless(ctx context.Context, conn Conn, opts ApplyOptions, done func() (bool, error)) (unlock func(), err error) {
	s := &session{conn: conn}
	for passed := 0; ; passed++ {
		name := naming.LockQueue(opts.Prefix)
		if passed > 0 {
			name = fmt.Sprintf("%s.%d", name, passed+1)
		}
		held, err := take(ctx, s, name, lockWait, done)
		switch {
		case err == nil && !held:
			s.close()
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
			s.close()
			return nil, err
		}
	}
}

// LockCreation keeps other clients from creating a queue, and from using a queue that another client is still
// creating. The broker shows a quorum queue before it accepts messages, and before RabbitMQ 4.3 even before it has
// its TTL. LockCreation waits up to 5 s for another holder of the lock. After that, or without the permission to
// configure naming.CreationLock, the error wraps ErrUnlocked. The queue can be created all the same.
func LockCreation(ctx context.Context, conn Conn, prefix, queue string) (unlock func(), err error) {
	s := &session{conn: conn}
	name := naming.CreationLock(prefix, queue)
	_, err = take(ctx, s, name, creationWait, never)
	if err == nil {
		return func() { releaseLock(s, name) }, nil
	}
	s.close()
	if errors.Is(err, errLocked) || !isConnectionLost(err) {
		err = fmt.Errorf("%w: %w", ErrUnlocked, err)
	}
	return nil, err
}

// take tries to get a lock until it holds it, or until done reports before an attempt that there is nothing to do. It
// returns errLocked if another client still has the lock when the time given by within is over.
func take(ctx context.Context, s *session, name string, within time.Duration, done func() (bool, error)) (held bool, err error) {
	deadline := time.Now().Add(within)
	for try := 1; ; try++ {
		if ok, err := done(); ok || err != nil {
			return false, err
		}
		// The deadline does not interrupt an attempt, because nothing would receive its answer.
		err := s.do(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(name, false, false, true, false, amqp.Table{argument.QueueType: string(topology.Classic)})
			return err
		})
		switch {
		case err == nil:
			return true, nil
		case context.Cause(ctx) != nil, !isCode(err, amqp.ResourceLocked):
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

// releaseLock deletes the lock's queue. It works even after the context under which the lock was taken has ended.
func releaseLock(s *session, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	_, _ = deleteQueue(ctx, s, name, false)
	s.close()
}
