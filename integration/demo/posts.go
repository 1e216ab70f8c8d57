package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
)

// posts are published when they are due, whatever changes their authors make before that. A post and its task are
// written in one transaction, and so is every change to them. Messages for earlier due times still arrive, and
// schedule.Handler skips them.
type posts struct {
	*stage
	queue                          string
	scheduled, rolledBack, tooLate atomic.Int64 // posts; tooLate counts changes of posts that were already published
	stale, cancelled, repeated     atomic.Int64 // count messages without effect
	arrived, published             lateness.Record
}

var postTables = []string{
	"posts (id VARCHAR(64) PRIMARY KEY, status VARCHAR(16) NOT NULL, due_ms BIGINT NOT NULL, moved INT DEFAULT 0, run_early INT DEFAULT 0)",
	"publications (post_id VARCHAR(64) NOT NULL, at_ms BIGINT NOT NULL)",
}

// change is an author's change to a post. Its times are fractions of the time between writing the post and its first
// due time.
type change struct {
	at float64
	do func(p *posts, ctx context.Context, tx *sql.Tx, id string, to time.Time) error
	to float64
}

// fates are the changes to every twenty posts.
var fates = [20][]change{
	0:  {},                          // the transaction is rolled back
	1:  {{0.4, (*posts).move, 1.4}}, // moved to a later time
	2:  {{0.5, (*posts).move, 1.6}},
	3:  {{0.3, (*posts).move, 0.6}}, // moved to an earlier time
	4:  {{0.4, (*posts).move, 0.7}},
	5:  {{0.3, (*posts).move, 1.5}, {0.5, (*posts).move, 0.8}}, // moved to a later time and back
	6:  {{0.5, (*posts).move, 1.5}, {1.1, (*posts).cancel, 0}}, // moved, and cancelled after the first message has arrived
	7:  {{0.2, (*posts).cancel, 0}},
	8:  {{0.4, (*posts).cancel, 0}},
	9:  {{0.6, (*posts).cancel, 0}},
	10: {{0.3, (*posts).runNow, 0}},
	11: {{0.6, (*posts).runNow, 0}},
	12: {{1.0, (*posts).cancel, 0}}, // exactly at the due time
	13: {{1.0, (*posts).move, 1.3}},
}

var errRollback = errors.New("the author has changed their mind")

func (p *posts) life(ctx context.Context, number int) error {
	id, fate := fmt.Sprintf("post-%d", number), number%len(fates)
	written, wait := time.Now(), 3*time.Second+rand.N(3*time.Second)
	at := func(part float64) time.Time {
		return written.Add(time.Duration(part * float64(wait))).Truncate(time.Millisecond)
	}
	status := "scheduled"
	if fate == 0 {
		status = "rolled back"
	}
	err := p.transact(ctx, func(tx *sql.Tx) error {
		if err := p.exec(ctx, tx, "INSERT INTO posts (id, status, due_ms) VALUES (?, ?, ?)", id, status, at(1).UnixMilli()); err != nil {
			return err
		}
		if err := p.tasks.Schedule(ctx, tx, schedule.Task{ID: id, Queue: p.queue, DeliverAt: at(1), Body: []byte(id)}); err != nil || fate > 0 {
			return err
		}
		return errRollback
	})
	if errors.Is(err, errRollback) {
		p.rolledBack.Add(1)
		return nil
	}
	p.scheduled.Add(1)
	for _, c := range fates[fate] {
		if err == nil && pauseUntil(ctx, at(c.at)) {
			err = p.transact(ctx, func(tx *sql.Tx) error { return c.do(p, ctx, tx, id, at(c.to)) })
		}
		if errors.Is(err, schedule.ErrStatus) { // the post is already published
			p.tooLate.Add(1)
			err = nil
		}
	}
	return err
}

// transact runs do in a transaction and commits it. It retries, because a database may abort a transaction in favor
// of another one.
func (p *posts) transact(ctx context.Context, do func(tx *sql.Tx) error) error {
	for try := 1; ; try++ {
		tx, err := p.db.BeginTx(ctx, nil)
		if err == nil {
			if err = do(tx); err == nil {
				return tx.Commit()
			}
			_ = tx.Rollback() // err has the reason
		}
		if try == 5 || errors.Is(err, errRollback) || errors.Is(err, schedule.ErrStatus) {
			return err
		}
	}
}

func (p *posts) move(ctx context.Context, tx *sql.Tx, id string, to time.Time) error {
	if err := p.tasks.Reschedule(ctx, tx, id, to); err != nil {
		return err
	}
	return p.exec(ctx, tx, "UPDATE posts SET due_ms = ?, moved = 1 WHERE id = ?", to.UnixMilli(), id)
}

func (p *posts) runNow(ctx context.Context, tx *sql.Tx, id string, _ time.Time) error {
	now := time.Now()
	if err := p.tasks.RunNow(ctx, tx, id); err != nil {
		return err
	}
	return p.exec(ctx, tx, "UPDATE posts SET due_ms = ?, run_early = 1 WHERE id = ?", now.UnixMilli(), id)
}

func (p *posts) cancel(ctx context.Context, tx *sql.Tx, id string, _ time.Time) error {
	if err := p.tasks.Cancel(ctx, tx, id); err != nil {
		return err
	}
	return p.exec(ctx, tx, "UPDATE posts SET status = 'cancelled' WHERE id = ?", id)
}

var errCrash = errors.New("as if the process had died before it acknowledged")

// handler publishes each post once. One message in four is redelivered after its effect.
func (p *posts) handler() amqpx.Handler {
	publish := schedule.Handler(p.db,
		func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
			now := time.Now()
			p.published.Add(now, d.DueAt)
			return p.exec(ctx, tx, "INSERT INTO publications (post_id, at_ms) VALUES (?, ?)", d.ID, now.UnixMilli())
		},
		schedule.OnSkip(func(_ context.Context, _ *amqpx.Delivery, why schedule.SkipReason) {
			switch why {
			case schedule.SkipStale:
				p.stale.Add(1)
			case schedule.SkipCancelled:
				p.cancelled.Add(1)
			case schedule.SkipDuplicate:
				p.repeated.Add(1)
			}
		}))
	return func(ctx context.Context, d *amqpx.Delivery) error {
		defer p.handled.Add(1)
		p.arrived.Add(time.Now(), d.DueAt)
		err := publish(ctx, d)
		if err == nil && d.Attempt == 1 && rand.IntN(4) == 0 {
			p.sent.Add(1)
			return amqpx.RetryIn(time.Second, errCrash)
		}
		return err
	}
}
