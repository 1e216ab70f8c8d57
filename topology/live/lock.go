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

// LateBindings reports whether a broker of that version may answer a bind before it routes by the binding. From
// 3.12 to 4.2 one with Mnesia commits the binding and only then, in a second transaction, what its topic
// exchange routes by: a client that makes the same binding in between is told at once that it exists. In a
// cluster whose nodes are being replaced an older node, too, may see what a newer one is binding. A version
// that cannot be read counts as one that may.
func LateBindings(version string) bool {
	return !observed.ParseVersion(version).AtLeast(4, 3, 0)
}

const (
	// lockWait is how long whoever holds the lock is believed to be at work. Binding takes a second or two, but
	// the lock of a machine that died stays until the broker misses its heartbeats.
	lockWait = 15 * time.Second
	// creationWait is that for a single queue.
	creationWait   = 5 * time.Second
	firstLockPause = 50 * time.Millisecond
	// maxLockPause keeps many who wait from slowing down the one that they wait for:
	// what each looks for in between is not there, which closes a channel.
	maxLockPause = 3 * time.Second
	// unlockTimeout is for a broker that does not answer: the lock then ends with the connection.
	unlockTimeout = 5 * time.Second
)

// ErrUnlocked means that something has to be done without the lock that would keep
// others from doing it at the same time.
var ErrUnlocked = errors.New("no lock")

// errLocked means that the lock could not be had for too long.
var errLocked = errors.New("another connection has held the lock for too long")

// never makes lockUnless and take do their work in any case.
func never() (bool, error) { return false, nil }

// lockUnless takes the lock, unless done says first that there is nothing to do, which it asks again after each
// wait; unlock then is nil. Without the right to the lock's queue it goes on all the same, and says so. When
// another has the lock for too long, it does so with a second lock, and then with a third: all who wait at once
// would be too much for a broker that is slow already.
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
		case !isConnectionLost(err): // it is about this lock
			unlocked(opts, err)
			return func() {}, nil
		default:
			s.close()
			return nil, err
		}
	}
}

// LockCreation keeps other clients from creating a queue, and from using one that another is creating: the
// broker shows a quorum queue before it takes messages, and before RabbitMQ 4.3 before it has its TTL. It waits
// up to 5 s for who has the lock. The error then, or without the right to configure naming.CreationLock, wraps
// ErrUnlocked: the queue can be created all the same.
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

// take tries for a lock until it is held, or done says before a try that there is
// nothing to do. Its error is errLocked when another has had it for that long.
func take(ctx context.Context, s *session, name string, within time.Duration, done func() (bool, error)) (held bool, err error) {
	deadline := time.Now().Add(within)
	for try := 1; ; try++ {
		if ok, err := done(); ok || err != nil {
			return false, err
		}
		// The deadline does not end a try: its answer would find nobody.
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

// releaseLock works also when the context has ended under which the lock was taken.
func releaseLock(s *session, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	_, _ = deleteQueue(ctx, s, name, false)
	s.close()
}
