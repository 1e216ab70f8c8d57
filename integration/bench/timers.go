package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// through RabbitMQ, by whatever strategy the client has.
type rabbit struct {
	c        *client
	prefetch int
}

func (r rabbit) start(ctx context.Context, came func(content []byte, at time.Time)) (func() error, error) {
	ended := make(chan error, 1)
	go func() {
		ended <- r.c.Consume(ctx, r.c.queue, func(_ context.Context, d *amqpx.Delivery) error {
			came(d.Body, time.Now())
			return nil
		}, amqpx.WithPrefetch(r.prefetch))
	}()
	return func() error { return errors.Join(<-ended, r.c.purge()) }, nil
}

func (r rabbit) keep(ctx context.Context, list []kept) error {
	msgs := make([]amqpx.Message, len(list))
	for i, k := range list {
		msgs[i] = amqpx.Message{Queue: r.c.queue, DeliverAt: k.due, Body: k.content}
	}
	return r.c.SendBatch(ctx, msgs)
}

// pollEvery is the usual period of a table that is polled.
const pollEvery = time.Second

// pollTake is how many rows one look takes; it looks again at once while there
// are as many.
const pollTake = 5000

// poll looks every second until ctx ends. take gives what is due, and how many
// that was.
func poll(ctx context.Context, take func(ctx context.Context) (int, error)) (stop func() error) {
	ended := make(chan error, 1)
	go func() {
		ticker := time.NewTicker(pollEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-ticker.C:
			}
			for n := pollTake; n == pollTake; {
				var err error
				if n, err = take(ctx); err != nil {
					if ctx.Err() != nil {
						err = nil
					}
					ended <- err
					return
				}
			}
		}
	}()
	return func() error { return <-ended }
}

// polledTable is an indexed table in PostgreSQL that is polled every second.
type polledTable struct{ db *sql.DB }

const polledSchema = `CREATE TABLE IF NOT EXISTS bench_polled (id BIGSERIAL PRIMARY KEY, due_us BIGINT NOT NULL, body BYTEA NOT NULL);
CREATE INDEX IF NOT EXISTS bench_polled_due ON bench_polled (due_us)`

func (p polledTable) start(ctx context.Context, came func(content []byte, at time.Time)) (func() error, error) {
	if _, err := p.db.ExecContext(ctx, polledSchema); err != nil {
		return nil, err
	}
	if _, err := p.db.ExecContext(ctx, "TRUNCATE bench_polled"); err != nil {
		return nil, err
	}
	return poll(ctx, func(ctx context.Context) (int, error) {
		rows, err := p.db.QueryContext(ctx, `DELETE FROM bench_polled WHERE id IN
			(SELECT id FROM bench_polled WHERE due_us <= $1 ORDER BY due_us LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING body`,
			time.Now().UnixMicro(), pollTake)
		if err != nil {
			return 0, err
		}
		defer rows.Close()
		n := 0
		for ; rows.Next(); n++ {
			var content []byte
			if err := rows.Scan(&content); err != nil {
				return n, err
			}
			came(content, time.Now())
		}
		return n, rows.Err()
	}), nil
}

func (p polledTable) keep(ctx context.Context, list []kept) error {
	for len(list) > 0 {
		m := min(len(list), rowsPerInsert)
		var q strings.Builder
		q.WriteString("INSERT INTO bench_polled (due_us, body) VALUES ")
		args := make([]any, 0, 2*m)
		for i, k := range list[:m] {
			if i > 0 {
				q.WriteString(", ")
			}
			fmt.Fprintf(&q, "($%d, $%d)", 2*i+1, 2*i+2)
			args = append(args, k.due.UnixMicro(), k.content)
		}
		if _, err := p.db.ExecContext(ctx, q.String(), args...); err != nil {
			return err
		}
		list = list[m:]
	}
	return nil
}

// polledSet is a sorted set in Redis that is polled every second.
type polledSet struct{ db *redis.Client }

const polledKey = "bench:polled"

// takeDue removes and returns what is due.
var takeDue = redis.NewScript(`local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for i = 1, #due do redis.call('ZREM', KEYS[1], due[i]) end
return due`)

func (p polledSet) start(ctx context.Context, came func(content []byte, at time.Time)) (func() error, error) {
	if err := p.db.Del(ctx, polledKey).Err(); err != nil {
		return nil, err
	}
	return poll(ctx, func(ctx context.Context) (int, error) {
		list, err := takeDue.Run(ctx, p.db, []string{polledKey}, time.Now().UnixMicro(), pollTake).StringSlice()
		if err != nil {
			return 0, err
		}
		for _, content := range list {
			came([]byte(content), time.Now())
		}
		return len(list), nil
	}), nil
}

func (p polledSet) keep(ctx context.Context, list []kept) error {
	_, err := p.db.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, k := range list {
			pipe.ZAdd(ctx, polledKey, redis.Z{Score: float64(k.due.UnixMicro()), Member: k.content})
		}
		return nil
	})
	return err
}
