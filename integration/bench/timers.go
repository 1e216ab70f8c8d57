package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// byClient keeps messages with the strategy of the case's client.
func byClient(_ context.Context, t *turn) (timer, error) {
	return timer{
		run: func(ctx context.Context, came func([]byte)) error { return t.c.receive(ctx, t.c.queue, came) },
		keep: func(ctx context.Context, list []kept) error {
			msgs := make([]amqpx.Message, len(list))
			for i, k := range list {
				msgs[i] = amqpx.Message{Queue: t.c.queue, DeliverAt: k.due, Body: k.content}
			}
			return t.c.SendBatch(ctx, msgs)
		},
	}, nil
}

// receive consumes a queue until ctx ends. Its prefetch is large enough for bursts.
func (c *client) receive(ctx context.Context, queue string, came func(content []byte)) error {
	return c.Consume(ctx, queue, func(_ context.Context, d *amqpx.Delivery) error {
		came(d.Body)
		return nil
	}, amqpx.WithPrefetch(500))
}

// byRelay keeps messages as tasks for the given number of queues in turn, while other work runs in the background.
func byRelay(queues int, other beside) func(ctx context.Context, t *turn) (timer, error) {
	return func(ctx context.Context, t *turn) (timer, error) {
		names, err := t.c.plain(queues)
		if err != nil {
			return timer{}, err
		}
		store, err := schedule.New(t.db, t.c.Client, schedule.Config{})
		if err != nil {
			return timer{}, err
		}
		end, err := other(ctx, t, store)
		if err != nil {
			return timer{}, err
		}
		var count atomic.Int64
		return timer{
			run: func(ctx context.Context, came func([]byte)) error {
				var all errgroup.Group
				all.Go(func() error { return store.Run(ctx) })
				for _, q := range names {
					all.Go(func() error { return t.c.receive(ctx, q, came) })
				}
				return errors.Join(all.Wait(), end(), t.empty(ctx, "rabbitdelay_tasks"))
			},
			keep: func(ctx context.Context, list []kept) error {
				batch := make([]schedule.Task, len(list))
				for i, k := range list {
					queue := names[int(count.Add(1))%len(names)]
					batch[i] = schedule.Task{ID: uuid.NewString(), Queue: queue, DeliverAt: k.due, Body: k.content}
				}
				return store.ScheduleBatch(ctx, schedule.NoTx, batch)
			},
		}, nil
	}
}

const polledTable = `CREATE TABLE IF NOT EXISTS bench_polled (id BIGSERIAL PRIMARY KEY, due_us BIGINT NOT NULL, body BYTEA NOT NULL);
CREATE INDEX IF NOT EXISTS bench_polled_due ON bench_polled (due_us)`

// byTable keeps messages in an indexed PostgreSQL table.
func byTable(ctx context.Context, t *turn) (timer, error) {
	if _, err := t.db.ExecContext(ctx, polledTable); err != nil {
		return timer{}, err
	}
	take := func(ctx context.Context, now int64) (list []string, err error) {
		rows, err := t.db.QueryContext(ctx, `DELETE FROM bench_polled WHERE id IN
			(SELECT id FROM bench_polled WHERE due_us <= $1 ORDER BY due_us LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING body`, now, pollTake)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var content string
			if err := rows.Scan(&content); err != nil {
				return list, err
			}
			list = append(list, content)
		}
		return list, rows.Err()
	}
	return timer{
		run: func(ctx context.Context, came func([]byte)) error {
			return errors.Join(poll(ctx, came, take), t.empty(ctx, "bench_polled"))
		},
		keep: func(ctx context.Context, list []kept) error {
			dues, bodies := make([]int64, len(list)), make([][]byte, len(list))
			for i, k := range list {
				dues[i], bodies[i] = k.due.UnixMicro(), k.content
			}
			_, err := t.db.ExecContext(ctx, "INSERT INTO bench_polled (due_us, body) SELECT * FROM unnest($1::bigint[], $2::bytea[])", dues, bodies)
			return err
		},
	}, nil
}

// takeDue removes and returns messages that are due.
var takeDue = redis.NewScript(`local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for i = 1, #due do redis.call('ZREM', KEYS[1], due[i]) end
return due`)

// bySet keeps messages in a sorted set of Redis.
func bySet(_ context.Context, t *turn) (timer, error) {
	const key = "bench:polled"
	take := func(ctx context.Context, now int64) ([]string, error) {
		return takeDue.Run(ctx, t.redis, []string{key}, now, pollTake).StringSlice()
	}
	return timer{
		run: func(ctx context.Context, came func([]byte)) error {
			return errors.Join(poll(ctx, came, take), t.redis.Del(context.WithoutCancel(ctx), key).Err())
		},
		keep: func(ctx context.Context, list []kept) error {
			_, err := t.redis.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, k := range list {
					pipe.ZAdd(ctx, key, redis.Z{Score: float64(k.due.UnixMicro()), Member: k.content})
				}
				return nil
			})
			return err
		},
	}, nil
}

// pollTake is the maximum number of messages per poll. If a poll returns that many, the next one follows immediately.
const pollTake = 5000

// poll polls every second, which is the usual interval. The function take removes and returns messages that are due.
func poll(ctx context.Context, came func(content []byte), take func(ctx context.Context, now int64) ([]string, error)) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for n := pollTake; n == pollTake; {
			list, err := take(ctx, time.Now().UnixMicro())
			if err != nil && ctx.Err() == nil {
				return err
			}
			for _, content := range list {
				came([]byte(content))
			}
			n = len(list)
		}
	}
}
