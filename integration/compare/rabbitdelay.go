package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver named pgx
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// messages sends delayed messages.
type messages struct {
	*amqpx.Client

	url, queue string
}

func openMessages(ctx context.Context, e *env) (system, error) {
	return connect(ctx, e, amqpx.Config{})
}

func openExact(ctx context.Context, e *env) (system, error) {
	cfg, err := exact()
	if err != nil {
		return nil, err
	}
	return connect(ctx, e, cfg)
}

// exact returns the settings of delay.exact.
func exact() (amqpx.Config, error) {
	strategy, err := dlx.NewBucket(dlx.BucketConfig{Resolution: 100 * time.Millisecond})
	return amqpx.Config{Strategy: strategy, Lead: 400 * time.Millisecond}, err
}

// connect opens a client and declares its queue, so that this does not happen while something is measured.
func connect(ctx context.Context, e *env, cfg amqpx.Config) (*messages, error) {
	cfg.URL = e.broker.URL()
	opening, cancel := context.WithTimeout(ctx, servers.Patience)
	defer cancel()
	client, err := amqpx.Open(opening, cfg)
	if err != nil {
		return nil, err
	}
	m := &messages{client, cfg.URL, e.name()}
	err = m.Send(opening, amqpx.Message{Queue: m.queue})
	if err == nil {
		err = m.purge(m.queue)
	}
	if err != nil {
		return nil, errors.Join(err, m.close(ctx))
	}
	return m, nil
}

// purge removes the messages of queues.
func (m *messages) purge(queues ...string) error {
	conn, err := amqp.Dial(m.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	for _, q := range queues {
		if _, err := ch.QueuePurge(q, false); err != nil {
			return fmt.Errorf("purge %s: %w", q, err)
		}
	}
	return nil
}

func (m *messages) message(t task) amqpx.Message {
	return amqpx.Message{Queue: m.queue, DeliverAt: t.due, Body: t.payload()}
}

func (m *messages) schedule(ctx context.Context, t task) error { return m.Send(ctx, m.message(t)) }

func (m *messages) scheduleAll(ctx context.Context, list []task) error {
	all := make([]amqpx.Message, len(list))
	for i, t := range list {
		all[i] = m.message(t)
	}
	return m.SendBatch(ctx, all)
}

func (m *messages) run(ctx context.Context, h handler) error {
	return m.consume(ctx, func(ctx context.Context, d *amqpx.Delivery) error { return h(ctx, d.Body, nil) })
}

func (m *messages) consume(ctx context.Context, h amqpx.Handler) error {
	return m.Consume(ctx, m.queue, h, amqpx.WithConcurrency(workers))
}

// close deletes the queue and purges the delay queues, which stay for the next contender.
func (m *messages) close(ctx context.Context) error {
	var queues []string
	for _, q := range m.Strategy().Topology().Queues {
		queues = append(queues, q.Name)
	}
	err := errors.Join(m.purge(queues...), m.Close(ctx))
	conn, derr := amqp.Dial(m.url)
	if derr != nil {
		return errors.Join(err, derr)
	}
	defer conn.Close()
	own := topology.Topology{Queues: topology.Destination{Queue: m.queue}.Queues(topology.Quorum)}
	return errors.Join(err, live.Broker{Conn: conn}.DeleteAll(ctx, own))
}

// tasks schedules tasks in PostgreSQL.
type tasks struct {
	*messages

	dsn   string
	store *schedule.Store
	// place schedules a task in a separate transaction, as a program would together with a change of its data.
	place func(ctx context.Context, t schedule.Task) error
	serve func(h handler) amqpx.Handler
	end   []func(ctx context.Context) error
}

func openSQL(ctx context.Context, e *env) (system, error) {
	return openTasks(ctx, e, amqpx.Config{}, func(ctx context.Context, t *tasks, dsn string) error {
		db, err := sql.Open("pgx", dsn)
		if err != nil {
			return err
		}
		t.end = append(t.end, func(context.Context) error { return db.Close() })
		db.SetMaxOpenConns(e.connections)
		db.SetMaxIdleConns(e.connections)
		if err := schedule.Migrate(ctx, db); err != nil {
			return err
		}
		t.place = func(ctx context.Context, one schedule.Task) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := t.store.Schedule(ctx, tx, one); err != nil {
				return err
			}
			return tx.Commit()
		}
		t.serve = func(h handler) amqpx.Handler {
			return schedule.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
				return h(ctx, d.Body, func(ctx context.Context, query string, args ...any) error {
					_, err := tx.ExecContext(ctx, query, args...)
					return err
				})
			})
		}
		t.store, err = schedule.New(db, t.Client, schedule.Config{})
		return err
	})
}

func openPgx(ctx context.Context, e *env) (system, error) { return pgxTasks(ctx, e, amqpx.Config{}) }

func openExactPgx(ctx context.Context, e *env) (system, error) {
	cfg, err := exact()
	if err != nil {
		return nil, err
	}
	return pgxTasks(ctx, e, cfg)
}

func pgxTasks(ctx context.Context, e *env, cfg amqpx.Config) (system, error) {
	return openTasks(ctx, e, cfg, func(ctx context.Context, t *tasks, dsn string) error {
		pool, err := e.pool(ctx, dsn)
		if err != nil {
			return err
		}
		t.end = append(t.end, closing(pool))
		if err := pgxtx.Migrate(ctx, pool); err != nil {
			return err
		}
		t.place = func(ctx context.Context, one schedule.Task) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return t.store.Schedule(ctx, pgxtx.On(tx), one) })
		}
		t.serve = func(h handler) amqpx.Handler {
			return pgxtx.TaskHandler(pool, func(ctx context.Context, tx pgx.Tx, d *amqpx.Delivery) error {
				return h(ctx, d.Body, onPgx(tx))
			})
		}
		t.store, err = pgxtx.New(pool, t.Client, schedule.Config{})
		return err
	})
}

// openTasks opens a client and a database, and calls the function prepare for them.
func openTasks(ctx context.Context, e *env, cfg amqpx.Config, prepare func(ctx context.Context, t *tasks, dsn string) error) (system, error) {
	dsn, drop, err := e.database(ctx)
	if err != nil {
		return nil, err
	}
	m, err := connect(ctx, e, cfg)
	if err != nil {
		return nil, errors.Join(err, drop(ctx))
	}
	t := &tasks{messages: m, dsn: dsn, end: []func(context.Context) error{drop}}
	if err := prepare(ctx, t, dsn); err != nil {
		return nil, errors.Join(err, t.close(ctx))
	}
	return t, nil
}

func (t *tasks) task(one task) schedule.Task {
	return schedule.Task{ID: fmt.Sprintf("%s-%d", t.queue, one.number), Queue: t.queue, DeliverAt: one.due, Body: one.payload()}
}

func (t *tasks) schedule(ctx context.Context, one task) error { return t.place(ctx, t.task(one)) }

func (t *tasks) scheduleAll(ctx context.Context, list []task) error {
	all := make([]schedule.Task, len(list))
	for i, one := range list {
		all[i] = t.task(one)
	}
	return t.store.ScheduleBatch(ctx, schedule.NoTx, all)
}

func (t *tasks) run(ctx context.Context, h handler) error {
	var both errgroup.Group
	both.Go(func() error { return t.store.Run(ctx) })
	both.Go(func() error { return t.consume(ctx, t.serve(h)) })
	return both.Wait()
}

func (t *tasks) database() string { return t.dsn }

func (t *tasks) close(ctx context.Context) error {
	err := t.messages.close(ctx)
	for _, end := range slices.Backward(t.end) {
		err = errors.Join(err, end(ctx))
	}
	return err
}

// pool opens a contender's pool of connections to PostgreSQL.
func (e *env) pool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = int32(e.connections)
	return pgxpool.NewWithConfig(ctx, cfg)
}

func closing(pool *pgxpool.Pool) func(context.Context) error {
	return func(context.Context) error {
		pool.Close()
		return nil
	}
}

// onPgx runs statements on a pool or in a transaction.
func onPgx(on pgxtx.Executor) execer {
	return func(ctx context.Context, query string, args ...any) error {
		_, err := on.Exec(ctx, query, args...)
		return err
	}
}
