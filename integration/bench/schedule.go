package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// plainTable is what one would write without package schedule: the row, and an
// index to find it by its due instant.
const plainTable = `CREATE TABLE IF NOT EXISTS bench_tasks (id VARCHAR(255) PRIMARY KEY, queue VARCHAR(255) NOT NULL, due_at BIGINT NOT NULL, body BYTEA NOT NULL);
CREATE INDEX IF NOT EXISTS bench_tasks_due ON bench_tasks (due_at)`

const rowsPerInsert = 500

// schedule compares the writing of tasks with plain rows, their relay with
// SendBatch, and their lateness with that beside destinations in trouble.
func (r *run) schedule(ctx context.Context, s *Scenario) (err error) {
	db, err := r.database(ctx, s)
	if err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, plainTable); err != nil {
		return err
	}
	t := r.o.QueueTypes[0]
	c, err := r.open(ctx, r.main, "schedule", t, clock(t))
	if err != nil {
		return err
	}
	defer func() { err = joined(err, c.close(ctx)) }()
	const group = "PostgreSQL"
	rows, plain := s.find(group, "ScheduleBatch, 500 rows a statement", false), s.find(group, "plain rows, 500 a statement", true)
	relay, batch := s.find(group, "relay", false), s.find(group, "SendBatch", true)
	n := r.o.Messages
	add, done := r.o.Progress("schedule", 4*n*r.o.Repeats)
	defer done()
	err = interleave(ctx, r.o.Repeats, []variant{
		{func(ctx context.Context) error {
			defer add(n)
			k, err := measured(func() error { return insertPlain(ctx, db, c.queue, n, r.o.Body) })
			plain.record(k, n)
			return err
		}},
		{func(ctx context.Context) error { return r.scheduleAndRelay(ctx, c, db, rows, relay, add) }},
		{func(ctx context.Context) error {
			k, err := measured(func() error { return c.sendBatches(ctx, n, n, r.o.Body, anyDelay, add) })
			batch.record(k, n)
			return errors.Join(err, c.purge())
		}},
	})
	if err != nil {
		return err
	}
	s.ratio("relay: rate / SendBatch", relay, batch, metricRate, 0.5, false)
	return r.besideTrouble(ctx, s, c, db)
}

func insertPlain(ctx context.Context, db *sql.DB, queue string, n, size int) error {
	for written := 0; written < n; {
		m := min(rowsPerInsert, n-written)
		var q strings.Builder
		q.WriteString("INSERT INTO bench_tasks (id, queue, due_at, body) VALUES ")
		args := make([]any, 0, 4*m)
		for i := range m {
			if i > 0 {
				q.WriteString(", ")
			}
			fmt.Fprintf(&q, "($%d, $%d, $%d, $%d)", 4*i+1, 4*i+2, 4*i+3, 4*i+4)
			args = append(args, uuid.NewString(), queue, time.Now().Add(anyDelay(written+i)).UnixMilli(), body(size, uint64(i)))
		}
		if _, err := db.ExecContext(ctx, q.String(), args...); err != nil {
			return err
		}
		written += m
	}
	_, err := db.ExecContext(ctx, "TRUNCATE bench_tasks")
	return err
}

// scheduleAndRelay writes tasks, and then lets the relay send them.
func (r *run) scheduleAndRelay(ctx context.Context, c *client, db *sql.DB, rows, relay *Case, advance func(int)) error {
	n := r.o.Messages
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var relayed atomic.Int64
	sent := make(chan struct{})
	all := sync.OnceFunc(func() { close(sent) })
	store, err := schedule.New(db, c.Client, schedule.Config{Hooks: schedule.Hooks{
		Relayed: func(k int, _ bool) {
			advance(k)
			if relayed.Add(int64(k)) >= int64(n) {
				all()
			}
		},
	}})
	if err != nil {
		return err
	}
	k, err := measured(func() error {
		for written := 0; written < n; {
			list := make([]schedule.Task, min(batchSize, n-written))
			for i := range list {
				list[i] = schedule.Task{ID: uuid.NewString(), Queue: c.queue, DeliverAt: time.Now().Add(anyDelay(written + i)), Body: body(r.o.Body, uint64(i))}
			}
			if err := store.ScheduleBatch(ctx, nil, list); err != nil {
				return err
			}
			written += len(list)
			advance(len(list))
		}
		return nil
	})
	if err != nil {
		return err
	}
	rows.record(k, n)
	ended := make(chan error, 1)
	k, err = measured(func() error {
		go func() { ended <- store.Run(ctx) }()
		select {
		case <-sent:
			return nil
		case err := <-ended:
			ended <- nil
			return errors.Join(errors.New("the relay ended before all was sent"), err)
		}
	})
	cancel()
	err = errors.Join(err, <-ended)
	if err != nil {
		return err
	}
	relay.record(k, n)
	if _, err := db.ExecContext(context.WithoutCancel(ctx), "TRUNCATE rabbitdelay_tasks CASCADE"); err != nil {
		return err
	}
	return c.purge()
}
