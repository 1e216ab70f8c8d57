package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverJobs schedules jobs of River.
type riverJobs struct {
	pool *pgxpool.Pool
	poll time.Duration // 0 for the default, which is a second
	dsn  string
	add  *river.Client[pgx.Tx]
	drop func(ctx context.Context) error
}

// riverArgs are the arguments of a job.
type riverArgs struct {
	Payload string `json:"payload"`
}

func (riverArgs) Kind() string { return "compare" }

func openRiver(poll time.Duration) func(ctx context.Context, e *env) (system, error) {
	return func(ctx context.Context, e *env) (_ system, err error) {
		r := &riverJobs{poll: poll}
		dsn, drop, err := e.database(ctx)
		if err != nil {
			return nil, err
		}
		r.dsn, r.drop = dsn, drop
		if r.pool, err = e.pool(ctx, dsn); err != nil {
			return nil, errors.Join(err, drop(ctx))
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, r.close(ctx))
			}
		}()
		driver := riverpgxv5.New(r.pool)
		migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: silent()})
		if err != nil {
			return nil, err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return nil, err
		}
		r.add, err = river.NewClient(driver, &river.Config{Logger: silent()})
		return r, err
	}
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (r *riverJobs) schedule(ctx context.Context, t task) error {
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		_, err := r.add.InsertTx(ctx, tx, riverArgs{string(t.payload())}, &river.InsertOpts{ScheduledAt: t.due})
		return err
	})
}

func (r *riverJobs) scheduleAll(ctx context.Context, list []task) error {
	all := make([]river.InsertManyParams, len(list))
	for i, t := range list {
		all[i] = river.InsertManyParams{Args: riverArgs{string(t.payload())}, InsertOpts: &river.InsertOpts{ScheduledAt: t.due}}
	}
	_, err := r.add.InsertManyFast(ctx, all)
	return err
}

func (r *riverJobs) run(ctx context.Context, h handler) error {
	registered := river.NewWorkers()
	river.AddWorker(registered, river.WorkFunc(func(ctx context.Context, job *river.Job[riverArgs]) error {
		return h(ctx, []byte(job.Args.Payload), onPgx(r.pool))
	}))
	cfg := &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers:           registered,
		FetchPollInterval: r.poll,
		FetchCooldown:     r.poll,
		Logger:            silent(),
	}
	client, err := river.NewClient(riverpgxv5.New(r.pool), cfg)
	if err != nil {
		return err
	}
	working := context.WithoutCancel(ctx) // a cancelled context would stop the running jobs
	if err := client.Start(working); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(working)
}

func (r *riverJobs) database() string { return r.dsn }

func (r *riverJobs) close(ctx context.Context) error {
	r.pool.Close()
	return r.drop(ctx)
}
