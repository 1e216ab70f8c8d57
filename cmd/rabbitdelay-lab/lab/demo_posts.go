package lab

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/lateness"
)

// Times of the posts' story, beside the orders'.
const (
	postMinDelay = 3 * time.Second // until a post is due, as first scheduled
	postMaxDelay = 6 * time.Second
	postSweep    = 5 * time.Second // after which an overdue post is sent again
)

// deed is what happens to a post while it waits.
type deed int

const (
	move deed = iota
	cancelPost
	fire
)

// step is one deed; instants are after the post's creation.
type step struct {
	at   time.Duration
	deed deed
	to   time.Duration // of move: the new due instant
}

// post is what is planned for one post, and what was committed. Its life is one
// goroutine's, and is read after that.
type post struct {
	id        string
	createAt  time.Duration // after the start
	first     time.Duration // until it is due
	steps     []step
	rollback  bool // the transaction that schedules it is undone
	copyAtDue bool // its message is put into the queue once more when it is due

	scheduled bool
	moved     int
	fired     bool
	cancelled bool
	due       int64 // of the last committed change, epoch ms
	version   int64
}

// posts is one run of the story.
type posts struct {
	store *store
	tasks *schedule.Store
	queue string
	list  []*post
	raw   *amqp.Connection

	late     lateness.Record
	handled  atomic.Int64 // messages, with or without an effect
	expected atomic.Int64 // confirmed publishes of the relay, and copies
	stale    atomic.Int64
	stopped  atomic.Int64 // messages of cancelled posts
	repeated atomic.Int64
	tooLate  atomic.Int64 // changes that came after the publication
}

// published counts the publications so far.
func (p *posts) published() int64 {
	return p.handled.Load() - p.stale.Load() - p.stopped.Load() - p.repeated.Load()
}

// planPosts draws everything that is left to chance; every kind of fate comes
// among any twenty.
func planPosts(run string, n int) []*post {
	list := make([]*post, n)
	for i := range list {
		first := postMinDelay + rand.N(postMaxDelay-postMinDelay)
		change := time.Duration(float64(first) * (0.2 + 0.4*rand.Float64()))
		later := step{change, move, first + time.Second + rand.N(2*time.Second)}
		x := &post{
			id: fmt.Sprintf("%s-post-%d", run, i+1), createAt: demoCreation * time.Duration(i) / time.Duration(n), first: first,
			copyAtDue: rand.IntN(4) == 0,
		}
		switch i % 20 {
		case 0, 1: // moved later
			x.steps = []step{later}
		case 2, 3: // moved earlier
			x.steps = []step{{change, move, change + 400*time.Millisecond + rand.N(first-change-800*time.Millisecond)}}
		case 4: // moved twice
			x.steps = []step{later, {first * 8 / 10, move, first*8/10 + 400*time.Millisecond}}
		case 5, 6, 7:
			x.steps = []step{{change, cancelPost, 0}}
		case 8: // moved, and cancelled between both instants
			x.steps = []step{later, {first + 200*time.Millisecond, cancelPost, 0}}
		case 9, 10:
			x.steps = []step{{change, fire, 0}}
		case 11: // at the very instant
			x.steps = []step{{first, cancelPost, 0}}
		case 12:
			x.steps = []step{{first, move, first + time.Second}}
		case 13:
			x.rollback = true
		}
		list[i] = x
	}
	return list
}

// run schedules posts and changes them while consumers publish those that are
// due. It returns when every message was handled, or is overdue.
func (p *posts) run(ctx context.Context, sender *amqpx.Client, consumers []*amqpx.Client) (err error) {
	p.tasks, err = schedule.New(p.store.db, sender, schedule.Config{
		Dialect: p.store.dialect, Grace: postSweep, PollInterval: 200 * time.Millisecond,
		Hooks: schedule.Hooks{Relayed: func(n int, _ bool) { p.expected.Add(int64(n)) }},
	})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1+len(consumers))
	go func() { ended <- p.tasks.Run(working) }()
	for _, c := range consumers {
		go func() { ended <- c.Consume(working, p.queue, p.handler(), amqpx.WithConcurrency(4)) }()
	}
	err = p.live(ctx)
	if err == nil {
		err = p.await(ctx)
	}
	stop()
	for range 1 + len(consumers) {
		err = errors.Join(err, <-ended)
	}
	return err
}

// handler publishes a post. Handler's fence decides whether it is called.
func (p *posts) handler() amqpx.Handler {
	handle := schedule.Handler(p.store.db,
		func(ctx context.Context, tx *sql.Tx, m *amqpx.Delivery) error {
			return p.store.publish(ctx, tx, m.ID, time.Now())
		},
		schedule.WithDialect(p.store.dialect),
		schedule.OnSkip(func(_ context.Context, _ *amqpx.Delivery, r schedule.SkipReason) {
			switch r {
			case schedule.SkipStale:
				p.stale.Add(1)
			case schedule.SkipCancelled:
				p.stopped.Add(1)
			case schedule.SkipDuplicate:
				p.repeated.Add(1)
			}
		}),
	)
	return func(ctx context.Context, m *amqpx.Delivery) error {
		if _, copied := m.Headers[headerCopy]; !copied && m.Attempt == 1 {
			p.late.Add(time.Now(), m.DueAt)
		}
		err := handle(ctx, m)
		if err == nil {
			p.handled.Add(1)
		}
		return err
	}
}

// live lets every post be scheduled, changed and due.
func (p *posts) live(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	start := time.Now()
	var lives sync.WaitGroup
	for _, x := range p.list {
		if !pauseUntil(ctx, start.Add(x.createAt)) {
			break
		}
		lives.Go(func() {
			if err := p.life(ctx, x); err != nil {
				cancel(fmt.Errorf("post %s: %w", x.id, err))
			}
		})
	}
	lives.Wait()
	return context.Cause(ctx)
}

var errUndone = errors.New("the author thinks better of it")

// life is that of one post.
func (p *posts) life(ctx context.Context, x *post) error {
	born := time.Now()
	err := p.transact(ctx, func(tx *sql.Tx) error {
		at := time.UnixMilli(born.Add(x.first).UnixMilli())
		if err := p.store.write(ctx, tx, x.id, at); err != nil {
			return err
		}
		if err := p.tasks.Schedule(ctx, tx, schedule.Task{ID: x.id, Queue: p.queue, DeliverAt: at, Body: []byte(x.id), ContentType: "text/plain"}); err != nil {
			return err
		}
		x.due, x.version = at.UnixMilli(), 1
		if x.rollback {
			return errUndone
		}
		return nil
	})
	if errors.Is(err, errUndone) {
		return nil
	}
	if err != nil {
		return err
	}
	x.scheduled = true
	for _, s := range x.steps {
		if !pauseUntil(ctx, born.Add(s.at)) {
			return nil
		}
		switch err := p.change(ctx, x, s, time.UnixMilli(born.Add(s.to).UnixMilli())); {
		case errors.Is(err, schedule.ErrStatus):
			p.tooLate.Add(1) // it is published
		case err != nil:
			return err
		}
	}
	if !pauseUntil(ctx, time.UnixMilli(x.due)) || !x.copyAtDue {
		return nil
	}
	if err := p.publishCopy(ctx, x); err != nil {
		return fmt.Errorf("copying its message: %w", err)
	}
	p.expected.Add(1)
	return nil
}

// change does one step, on the task and on the post's row in one transaction.
func (p *posts) change(ctx context.Context, x *post, s step, to time.Time) error {
	var t schedule.Task
	err := p.transact(ctx, func(tx *sql.Tx) (err error) {
		switch s.deed {
		case move:
			err = p.tasks.Reschedule(ctx, tx, x.id, to)
		case fire:
			err = p.tasks.FireNow(ctx, tx, x.id)
		default:
			err = p.tasks.Cancel(ctx, tx, x.id)
		}
		if err != nil {
			return err
		}
		if t, err = p.tasks.Get(ctx, tx, x.id); err != nil {
			return err
		}
		return p.store.movePost(ctx, tx, x.id, t.DeliverAt, s.deed == cancelPost)
	})
	if err != nil {
		return err
	}
	x.due, x.version = t.DeliverAt.UnixMilli(), t.Version
	switch s.deed {
	case move:
		x.moved++
	case fire:
		x.fired = true
	default:
		x.cancelled = true
	}
	return nil
}

// changeTries is how often a transaction is begun that the database undid, for
// a deadlock for example.
const changeTries = 5

// transact commits what do does. What is not committed may be done again.
func (p *posts) transact(ctx context.Context, do func(tx *sql.Tx) error) error {
	for try := 1; ; try++ {
		tx, err := p.store.db.BeginTx(ctx, nil)
		if err == nil {
			if err = do(tx); err == nil {
				return tx.Commit()
			}
			_ = tx.Rollback() // err says what went wrong
		}
		if try == changeTries || errors.Is(err, errUndone) || errors.Is(err, schedule.ErrStatus) || errors.Is(err, schedule.ErrExists) ||
			!pauseUntil(ctx, time.Now().Add(20*time.Millisecond)) {
			return err
		}
	}
}

// publishCopy puts the post's message into the queue as any other publisher
// could.
func (p *posts) publishCopy(ctx context.Context, x *post) error {
	return publishRaw(ctx, p.raw, p.queue, amqp.Publishing{
		MessageId: x.id, DeliveryMode: amqp.Persistent, Body: []byte(x.id),
		Headers: amqp.Table{amqpx.HeaderDue: x.due, amqpx.HeaderVersion: x.version, headerCopy: true},
	})
}

// await waits until every message was handled and no post waits, or none can be
// expected any more.
func (p *posts) await(ctx context.Context) error {
	overdue := time.NewTimer(demoGrace)
	defer overdue.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if p.handled.Load() >= p.expected.Load() {
			waiting, err := p.store.waiting(ctx, p.queue)
			if err != nil {
				return err
			}
			if waiting == 0 && p.handled.Load() >= p.expected.Load() {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-overdue.C:
			return nil // the ledger says what is missing
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
