package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// far contains the due times of the backlog's tasks. None of the tasks is sent to a broker before the measurement ends.
var far = span{2 * 24 * time.Hour, 32 * 24 * time.Hour}

// backlog measures the memory and the disk space that a contender's server uses for waiting tasks.
func backlog(ctx context.Context, r *run, c contender, row *bench.Case) error {
	if c.name == byExact || c.name == byPgx {
		return nil // its messages and rows are the same as those of another contender
	}
	return r.with(ctx, c, func(s system) error {
		before, err := r.weigh(ctx, c.keeper, s)
		if err != nil {
			r.result.Scenario.Notef("%s: not measured: %v", c.name, err)
			return nil
		}
		began, n := time.Now(), 0
		l := newLedger()
		for n < r.sizes.Pending {
			list := make([]task, min(batchSize*10, r.sizes.Pending-n))
			for i := range list {
				list[i] = task{int64(n + i), time.Now().Add(far.at(rand.Float64()))}
			}
			if err := store(ctx, s, l, list); err != nil {
				return err
			}
			n += len(list)
		}
		took := time.Since(began)
		after, err := r.settled(ctx, c.keeper, s)
		if err != nil {
			return err
		}
		each := func(name string, a, b float64) {
			if b > 0 {
				row.Add(name, "bytes per task", max(0, b-a)/float64(n))
			}
		}
		each(metricUsed, before.used, after.used)
		each(metricResident, before.resident, after.resident)
		each(metricDisk, before.disk, after.disk)
		row.Add(metricTook, "s", took.Seconds())
		return nil
	})
}

// weight is a server's resource usage in bytes. The field used is the server's own figure, or 0 if it reports none.
type weight struct{ used, resident, disk float64 }

// weigh measures a server.
func (r *run) weigh(ctx context.Context, s server, sys system) (w weight, err error) {
	switch s {
	case rabbitMQ:
		w.used, w.disk, err = weighBroker(ctx, r.broker)
	case pluggedRabbitMQ:
		w.used, w.disk, err = weighBroker(ctx, r.plugged)
	case redisServer:
		w.used, w.disk, err = r.weighRedis(ctx)
	case postgreSQL:
		w.disk, err = weighDatabase(ctx, sys)
	}
	if err != nil {
		return w, err
	}
	w.resident, err = r.resident(ctx, s)
	return w, err
}

// settled measures a server repeatedly until its memory no longer falls.
func (r *run) settled(ctx context.Context, s server, sys system) (weight, error) {
	last, err := r.weigh(ctx, s, sys)
	for i := 0; i < 5 && err == nil; i++ {
		if err = wait.For(ctx, time.Second); err != nil {
			break
		}
		var now weight
		if now, err = r.weigh(ctx, s, sys); err != nil {
			break
		}
		falls := now.resident < 0.98*last.resident
		last = now
		if !falls {
			break
		}
	}
	return last, err
}

func weighBroker(ctx context.Context, b *broker.Broker) (used, disk float64, err error) {
	out, err := b.Ctl(ctx, "--silent", "eval", `[garbage_collect(P) || P <- processes()], io:format("~b ~s ", [erlang:memory(total),
		os:cmd("du -sk '" ++ rabbit_mnesia:dir() ++ "' | cut -f1 | tr -dc 0-9")]).`)
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(out, &used, &disk)
	return used, disk * 1024, err
}

// weighRedis also writes a snapshot, because Redis keeps its data on the disk in snapshots.
func (r *run) weighRedis(ctx context.Context) (used, disk float64, err error) {
	o, err := redis.ParseURL(r.redis.URL())
	if err != nil {
		return 0, 0, err
	}
	o.ReadTimeout = time.Minute
	c := redis.NewClient(o)
	defer func() { _ = c.Close() }()
	if err := c.Save(ctx).Err(); err != nil {
		return 0, 0, err
	}
	if used, err = redisNumber(ctx, c, "memory", "used_memory"); err != nil {
		return 0, 0, err
	}
	dir, err := c.ConfigGet(ctx, "dir").Result()
	if err != nil {
		return 0, 0, err
	}
	file, err := os.Stat(filepath.Join(dir["dir"], "dump.rdb"))
	if err != nil {
		return 0, 0, err
	}
	return used, float64(file.Size()), nil
}

func weighDatabase(ctx context.Context, sys system) (disk float64, err error) {
	on, ok := sys.(recorded)
	if !ok {
		return 0, fmt.Errorf("%T has no database", sys)
	}
	err = onDatabase(ctx, on.database(), func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT pg_database_size(current_database())::float8").Scan(&disk)
	})
	return disk, err
}
