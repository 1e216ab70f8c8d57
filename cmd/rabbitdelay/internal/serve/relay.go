package serve

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/probe"
	"github.com/rabbitdelay/rabbitdelay/config"
)

const (
	// again is the pause before serve tries again after the broker or the database was unavailable.
	again = 2 * time.Second
	// opening is how long serve waits for the broker in one attempt before it reports the problem.
	opening = 10 * time.Second
	// preparing is the timeout for reading and writing the database before the relay starts.
	preparing = time.Minute
	// watching is the interval at which the database is checked if serve does not relay.
	watching = 5 * time.Second
)

// relayPart is the background part of serve: the client and the relay.
type relayPart struct {
	*app.App

	cfg     *config.Config
	db      *sql.DB // nil without a database
	metrics *probe.Metrics

	flags schedule.Config

	sent, resent  atomic.Int64
	postponed     atomic.Int64
	failed        atomic.Int64
	purged        atomic.Int64
	interruptions atomic.Int64

	relays bool // there is a database, and relaying is not turned off

	mu       sync.Mutex
	client   *amqpx.Client
	store    *schedule.Store // the store that relays
	observed bool            // the metrics observe the client and the store
	problem  error           // why the client or the relay does not work at the moment; nil if both work
}

type relayed struct {
	Relayed   int64   `json:"relayed"`
	Resent    int64   `json:"resent"`
	Postponed int64   `json:"postponed"`
	Failed    int64   `json:"failed"`
	Purged    int64   `json:"purged"`
	Errors    int64   `json:"errors"`
	Seconds   float64 `json:"seconds"`
}

func (r *relayPart) register(f *pflag.FlagSet) {
	d, c := schedule.Config{}.WithDefaults(), &r.flags
	c.Grace, c.PollInterval = d.Grace, d.PollInterval
	f.Var((*app.Duration)(&c.Horizon), "horizon", "how long before its due time a task is sent to the broker; default: 1d, or the strategy's longest delay if that is shorter")
	f.Var((*app.Duration)(&c.Grace), "grace", "if a pending task's message was lost, send the task again no earlier than this long after its due time")
	f.IntVar(&c.MaxSends, "max-sends", d.MaxSends, "how many times a task is sent before it fails, if no handler settles it")
	f.Var((*app.Duration)(&c.PollInterval), "poll", "maximum time between two queries for new tasks")
	f.IntVar(&c.Batch, "batch", d.Batch, "tasks in a batch")
	f.IntVar(&c.Workers, "workers", d.Workers, "batches processed at the same time")
}

// check validates the flags before anything is started.
func (r *relayPart) check() error {
	c := r.config(nil).WithDefaults()
	if c.Horizon == 0 {
		c.Horizon = time.Hour // a valid value, because the real default depends on the strategy
	}
	return c.Validate()
}

func (r *relayPart) config(listener schedule.Listener) schedule.Config {
	c := r.flags
	c.RateLimits, c.Listener, c.Hooks, c.Logger = r.cfg.RateLimits(), listener, r.metrics.Hooks(schedule.Hooks{
		Relayed: func(n int, resent bool) {
			if resent {
				r.resent.Add(int64(n))
			} else {
				r.sent.Add(int64(n))
			}
		},
		SendFailed: func(_ schedule.TaskRow, _ error, failed bool) {
			if failed {
				r.failed.Add(1)
			} else {
				r.postponed.Add(1)
			}
		},
		Purged: func(n int64) { r.purged.Add(n) },
		Error:  func(string, error) { r.interruptions.Add(1) },
	}), r.Logger()
	return c
}

// connectAndRelay connects and, until ctx is done, relays tasks or, if relays is false, checks the database. It retries
// after errors.
func (r *relayPart) connectAndRelay(ctx context.Context) {
	log := r.Logger()
	told := ""
	for ctx.Err() == nil {
		err := r.once(ctx)
		if err == nil || ctx.Err() != nil {
			break
		}
		r.mu.Lock()
		r.problem = err
		r.mu.Unlock()
		if text := err.Error(); text != told {
			told = text
			log.Warn("the broker or the database is unavailable; trying again", zap.Error(err))
		}
		r.interruptions.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

// close closes the client, immediately if ctx is done.
func (r *relayPart) close(ctx context.Context) {
	r.mu.Lock()
	client := r.client
	r.mu.Unlock()
	if client != nil {
		_ = client.Close(ctx) // the client is idle, so an error does not matter
	}
}

// once connects and runs the relay. It returns nil when ctx is done, or the error that prevents it from working.
func (r *relayPart) once(ctx context.Context) error {
	client, err := r.connect(ctx)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	r.mu.Lock()
	store := r.store
	r.client = client
	r.mu.Unlock()
	if r.db != nil && store == nil {
		if store, err = r.prepare(ctx, client); err != nil {
			return err
		}
	}
	if err := r.begun(store); err != nil {
		return err
	}
	if !r.relays {
		return r.watch(ctx, store)
	}
	r.Logger().Info("relaying tasks", zap.Stringer("database", r.cfg.Database.URL), zap.String("broker", client.BrokerVersion()),
		zap.String("strategy", client.Strategy().Name()))
	return store.Run(ctx)
}

// begun clears the last problem, because the process works again, and keeps the store if it relays. The first call
// starts to export metrics.
func (r *relayPart) begun(store *schedule.Store) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = nil
	if r.relays {
		r.store = store
	}
	if r.observed {
		return nil
	}
	r.observed = true
	return r.metrics.Observe(r.client, r.store, r.cfg.Topology.Destinations)
}

// watch checks the database regularly, and returns an error when it does not answer, or nil when ctx is done. It is
// needed only without a relay: a running relay notices by itself that the database no longer answers.
func (r *relayPart) watch(ctx context.Context, store *schedule.Store) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watching):
		}
		if store == nil {
			continue
		}
		if err := app.CheckDatabase(ctx, store, app.AdviceMigrate); err != nil {
			return err
		}
	}
}

// connect opens the client if it is not open yet. The client reconnects automatically.
func (r *relayPart) connect(ctx context.Context) (*amqpx.Client, error) {
	r.mu.Lock()
	client := r.client
	r.mu.Unlock()
	if client != nil {
		return client, nil
	}
	c := *r.cfg
	s, err := c.Strategy(ctx, nil)
	if err != nil {
		return nil, err
	}
	if !r.relays { // it only requeues and sends no delayed messages
		c.Broker.Declare = amqpx.DeclareNothing
		s = app.Undeclared{Strategy: s}
	}
	cfg, err := c.Client(s, r.Logger())
	if err != nil {
		return nil, err
	}
	cfg.Hooks = append(cfg.Hooks, r.metrics.Hook())
	ctx, cancel := context.WithTimeout(ctx, opening)
	defer cancel()
	return amqpx.Open(ctx, cfg)
}

// prepare checks the database and returns a store. If this process relays, the store can send tasks, and prepare also
// writes the file's recurring tasks to the database.
func (r *relayPart) prepare(ctx context.Context, client *amqpx.Client) (*schedule.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, preparing)
	defer cancel()
	reader, err := schedule.New(r.db, nil, schedule.Config{Destination: r.cfg.Listed, Logger: r.Logger()})
	if err != nil {
		return nil, err
	}
	if err := app.CheckTasks(ctx, reader); err != nil || !r.relays {
		return reader, err
	}
	listener, err := config.Listener(r.cfg.Database.URL)
	if err != nil {
		return nil, err
	}
	applied, err := r.ApplySchedules(ctx, reader.Recurring(), r.cfg)
	if err != nil {
		return nil, err
	}
	if text := app.AppliedText(applied); text != "" {
		r.Logger().Info("wrote recurring tasks: " + text)
	}
	return schedule.New(r.db, client, r.config(listener))
}

// theClient returns the client for requeueing, or the reason why there is none yet.
func (r *relayPart) theClient() (*amqpx.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return nil, cmp.Or(r.problem, probe.ErrStarting)
	}
	return r.client, nil
}

// health returns the problem that keeps this process from working, or nil.
func (r *relayPart) health() error {
	r.mu.Lock()
	client, store, problem, observed := r.client, r.store, r.problem, r.observed
	r.mu.Unlock()
	switch {
	case problem != nil:
		return problem
	case !observed: // it has not started yet
		return probe.ErrStarting
	case store == nil:
		return client.Health()
	}
	return errors.Join(client.Health(), store.Health())
}

func (r *relayPart) summary(took time.Duration) error {
	out := relayed{
		Relayed: r.sent.Load(), Resent: r.resent.Load(), Postponed: r.postponed.Load(), Failed: r.failed.Load(),
		Purged: r.purged.Load(), Errors: r.interruptions.Load(), Seconds: app.Seconds(took),
	}
	return r.Show(out, "%d tasks relayed, %d sent again, %d sends postponed, %d tasks failed, %d finished tasks deleted, %d errors, in %.1f s\n",
		out.Relayed, out.Resent, out.Postponed, out.Failed, out.Purged, out.Errors, took.Seconds())
}
