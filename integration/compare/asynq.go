package main

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqTasks schedules tasks of asynq.
type asynqTasks struct {
	client  *asynq.Client
	at      asynq.RedisClientOpt
	forward time.Duration // 0 for the default, which is 5 s
	flush   func(ctx context.Context) error
}

func openAsynq(forward time.Duration) func(ctx context.Context, e *env) (system, error) {
	return func(ctx context.Context, e *env) (system, error) {
		o, err := e.redisOptions()
		if err != nil {
			return nil, err
		}
		at := asynq.RedisClientOpt{Addr: o.Addr, Username: o.Username, Password: o.Password, DB: o.DB}
		a := &asynqTasks{client: asynq.NewClient(at), at: at, forward: forward, flush: flushing(o)}
		if err := a.client.Ping(); err != nil {
			return nil, errors.Join(err, a.close(ctx))
		}
		return a, nil
	}
}

// flushing returns a function that empties a database of Redis.
func flushing(o *redis.Options) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		c := redis.NewClient(o)
		return errors.Join(c.FlushDB(ctx).Err(), c.Close())
	}
}

const asynqType = "compare"

func (a *asynqTasks) schedule(ctx context.Context, t task) error {
	_, err := a.client.EnqueueContext(ctx, asynq.NewTask(asynqType, t.payload()), asynq.ProcessAt(t.due))
	return err
}

func (*asynqTasks) scheduleAll(context.Context, []task) error { return errNoBatches }

func (a *asynqTasks) run(ctx context.Context, h handler) error {
	srv := asynq.NewServer(a.at, asynq.Config{
		Concurrency:              workers,
		DelayedTaskCheckInterval: a.forward,
		Logger:                   noLog{},
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Second },
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc(asynqType, func(ctx context.Context, t *asynq.Task) error { return h(ctx, t.Payload(), nil) })
	if err := srv.Start(mux); err != nil {
		return err
	}
	<-ctx.Done()
	srv.Shutdown()
	return nil
}

// noLog is a logger of asynq.
type noLog struct{}

func (noLog) Debug(...any) {}
func (noLog) Info(...any)  {}
func (noLog) Warn(...any)  {}
func (noLog) Error(...any) {}
func (noLog) Fatal(...any) {}

func (a *asynqTasks) close(ctx context.Context) error {
	return errors.Join(a.client.Close(), a.flush(ctx))
}
