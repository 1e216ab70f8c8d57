package bench

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// effect is a statement such as a business would run for each message.
const (
	effectTable = "CREATE TABLE IF NOT EXISTS bench_effects (id BIGSERIAL PRIMARY KEY, body BYTEA NOT NULL)"
	effect      = "INSERT INTO bench_effects (body) VALUES ($1)"
)

// consume compares handlers: the raw client, a bare handler, and those whose
// effect commits in PostgreSQL, all at the same concurrency and prefetch.
func (r *run) consume(ctx context.Context, s *Scenario) error {
	db, err := r.database(ctx, s)
	if err != nil {
		s.notef("no database: %v", err)
		db = nil
	} else if _, err := db.ExecContext(ctx, effectTable); err != nil {
		return err
	}
	for _, t := range r.o.QueueTypes {
		if err := r.consumeFrom(ctx, s, t, db); err != nil {
			return fmt.Errorf("%s queues: %w", t, err)
		}
	}
	return nil
}

func (r *run) consumeFrom(ctx context.Context, s *Scenario, t topology.QueueType, db *sql.DB) (err error) {
	c, err := r.open(ctx, r.main, "consume-"+string(t), t, clock(t))
	if err != nil {
		return err
	}
	defer func() { err = joined(err, c.close(ctx)) }()
	group := string(t) + " queue"
	work := []handling{
		{name: "raw client", baseline: true},
		{name: "bare handler", handler: func(context.Context, *amqpx.Delivery) error { return nil }},
	}
	if db != nil {
		work = append(work, databaseHandlings(db, r.o.Concurrency)...)
	}
	total := 0
	for _, h := range work {
		total += r.consumed(h) * r.o.Repeats
	}
	add, done := r.o.Progress("consume, "+group, total)
	defer done()
	var variants []variant
	for _, h := range work {
		kase := s.find(group, h.name, h.baseline)
		variants = append(variants, variant{func(ctx context.Context) error {
			return r.consumeOnce(ctx, c, db, h, kase, add)
		}})
	}
	if err := interleave(ctx, r.o.Repeats, variants); err != nil {
		return err
	}
	find := func(name string) *Case { return s.find(group, name, false) }
	s.ratio("bare handler, "+group+": rate / raw", find("bare handler"), find("raw client"), metricRate, 0.90, false)
	if db != nil {
		s.ratio("idempotent handler in groups, "+group+": rate / bare handler", find(idempotent), find("bare handler"), metricRate, 0.5, false)
		s.ratio("task handler in groups, "+group+": rate / bare handler", find(tasks), find("bare handler"), metricRate, 0.4, false)
	}
	return nil
}

// handling is one way to handle messages.
type handling struct {
	name     string
	baseline bool
	handler  amqpx.Handler // nil: the raw client
	database bool          // it takes a transaction
	grouped  bool          // which it shares with others
	rows     bool          // each message is a task with a row
}

const (
	idempotent = "idempotent handler in groups, no effect"
	tasks      = "task handler in groups, no effect"
)

func databaseHandlings(db *sql.DB, concurrency int) []handling {
	group, taskGroup := idempotency.WithGroup(concurrency), schedule.WithGroup(concurrency)
	nothing := func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }
	insert := func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		_, err := tx.ExecContext(ctx, effect, d.Body)
		return err
	}
	plain := func(ctx context.Context, d *amqpx.Delivery) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := insert(ctx, tx, d); err != nil {
			return err
		}
		return tx.Commit()
	}
	all := []handling{
		{name: "idempotent handler, no effect", handler: idempotency.Handler(db, nothing)},
		{name: idempotent, handler: idempotency.Handler(db, nothing, group), grouped: true},
		{name: "task handler, no effect", handler: schedule.Handler(db, nothing), rows: true},
		{name: tasks, handler: schedule.Handler(db, nothing, taskGroup), grouped: true, rows: true},
		{name: "plain transaction with an effect", baseline: true, handler: plain},
		{name: "idempotent handler with the effect", handler: idempotency.Handler(db, insert)},
		{name: "idempotent handler in groups with the effect", handler: idempotency.Handler(db, insert, group), grouped: true},
		{name: "task handler with the effect", handler: schedule.Handler(db, insert), rows: true},
		{name: "task handler in groups with the effect", handler: schedule.Handler(db, insert, taskGroup), grouped: true, rows: true},
	}
	for i := range all {
		all[i].database = true
	}
	return all
}

// consumed is how many messages a handler gets in a repeat: fewer where they take
// transactions, and yet enough for its beginning not to count.
func (r *run) consumed(h handling) int {
	switch {
	case h.grouped:
		return max(r.o.Messages/2, 500)
	case h.database:
		return max(r.o.Messages/5, 500)
	}
	return r.o.Messages
}

// consumeOnce fills the queue and empties it, which is what is measured.
func (r *run) consumeOnce(ctx context.Context, c *client, db *sql.DB, h handling, kase *Case, advance func(int)) error {
	n := r.consumed(h)
	if err := c.fill(ctx, db, n, r.o.Body, h.rows); err != nil {
		return err
	}
	var handled atomic.Int64
	count := func() bool {
		i := handled.Add(1)
		if i%1000 == 0 {
			advance(1000)
		}
		return i == int64(n)
	}
	prefetch := 4 * r.o.Concurrency // amqpx's default
	k, err := measured(func() error {
		if h.handler == nil {
			return rawConsume(ctx, c.conn, c.queue, n, r.o.Concurrency, prefetch, count)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var failure atomic.Pointer[error]
		err := c.Consume(ctx, c.queue, func(ctx context.Context, d *amqpx.Delivery) error {
			if err := h.handler(ctx, d); err != nil {
				failure.CompareAndSwap(nil, &err)
				cancel()
				return err
			}
			if count() {
				cancel()
			}
			return nil
		}, amqpx.WithConcurrency(r.o.Concurrency), amqpx.WithPrefetch(prefetch))
		if e := failure.Load(); e != nil {
			return *e
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	kase.record(k, n)
	return c.purge()
}

// fill puts messages into the destination queue, with the rows of their tasks.
func (c *client) fill(ctx context.Context, db *sql.DB, n, size int, rows bool) error {
	var store *schedule.Store
	if rows {
		var err error
		if store, err = schedule.New(db, nil, schedule.Config{}); err != nil {
			return err
		}
	}
	due := time.Now().Add(-time.Second)
	for sent := 0; sent < n; {
		msgs := make([]amqpx.Message, min(batchSize, n-sent))
		list := make([]schedule.Task, len(msgs))
		for i := range msgs {
			id := uuid.NewString()
			msgs[i] = amqpx.Message{ID: id, Queue: c.queue, Version: 1, Body: body(size, uint64(sent+i))}
			list[i] = schedule.Task{ID: id, Queue: c.queue, DeliverAt: due, Body: msgs[i].Body}
		}
		if rows {
			if err := store.ScheduleBatch(ctx, nil, list); err != nil {
				return err
			}
		}
		if err := c.SendBatch(ctx, msgs); err != nil {
			return err
		}
		sent += len(msgs)
	}
	return nil
}
