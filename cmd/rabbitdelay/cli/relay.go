package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// relayRun is one run of relay.
type relayRun struct {
	a             *app
	db            string
	horizon       duration
	grace         duration
	maxSends      int
	poll          duration
	probe         string
	batch         int
	workers       int
	sent, resent  atomic.Int64
	postponed     atomic.Int64
	failed        atomic.Int64
	purged        atomic.Int64
	interruptions atomic.Int64
}

// relayed is the result of relay.
type relayed struct {
	Relayed   int64   `json:"relayed"`
	Resent    int64   `json:"resent"`
	Postponed int64   `json:"postponed"`
	Failed    int64   `json:"failed"`
	Purged    int64   `json:"purged"`
	Errors    int64   `json:"errors"`
	Seconds   float64 `json:"seconds"`
}

func (a *app) relayCommand() *cobra.Command {
	r := &relayRun{a: a}
	c := &cobra.Command{
		Use:   "relay",
		Short: "Send a database's tasks to the broker until stopped",
		Long: `relay sends the tasks in the table rabbitdelay_tasks, whichever program wrote
them, to the broker with their remaining delay. It sends tasks again whose
messages are evidently lost, and deletes finished ones after their retention. Several
relays on one database share the work, and any of them may stop at any time.
It makes the tasks of recurring ones, and writes those of the file's section
schedules when it starts.

It runs until SIGINT or SIGTERM, then finishes what it has begun (a few seconds),
prints a line with what it did, with --json {"relayed":N,"resent":N,
"postponed":N,"failed":N,"purged":N,"errors":N,"seconds":S}, and exits with 0.
Postponed counts sends that are tried again, failed the tasks that cannot be sent,
errors those of database and broker in between. It exits with 1 when it cannot
begin: no database, no table, or no broker within 30 seconds.

--probe HOST:PORT answers probes over HTTP: /healthz with 200 while the process runs,
/readyz with 200 while the broker, the database and every part of the relay work,
else with 503 and what is wrong, as {"ok":false,"problem":"..."}. Restart it for
neither a broker nor a database that is gone: it goes on by itself.

New tasks are seen at once on PostgreSQL, by LISTEN and NOTIFY, and within --poll
elsewhere.`,
		Example: `  rabbitdelay relay --db postgres://user:password@host/shop -f delays.yaml
  RABBITDELAY_DATABASE_URL=sqlite:shop.db rabbitdelay relay --poll 200ms --json`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	d := schedule.Config{}.WithDefaults()
	r.grace, r.maxSends, r.poll, r.batch, r.workers = duration(d.Grace), d.MaxSends, duration(d.PollInterval), d.Batch, d.Workers
	f := c.Flags()
	f.StringVar(&r.db, "db", "", databaseUsage)
	f.Var(&r.horizon, "horizon", "how long before its due instant a task is sent to the broker; default 1d, or the strategy's longest delay if that is shorter")
	f.Var(&r.grace, "grace", "how long after its due instant a pending task may be sent again, if its message is lost")
	f.IntVar(&r.maxSends, "max-sends", r.maxSends, "how often a task is sent that no handler settles, before it fails")
	f.Var(&r.poll, "poll", "longest pause between two looks for new tasks")
	f.StringVar(&r.probe, "probe", "", "answer /healthz and /readyz at this `HOST:PORT`")
	f.IntVar(&r.batch, "batch", r.batch, "tasks taken at once")
	f.IntVar(&r.workers, "workers", r.workers, "batches processed at the same time")
	return c
}

func (r *relayRun) run(ctx context.Context) error {
	a := r.a
	if !a.Given("log-level") {
		a.LogLevel = "info" // a process that runs for weeks says when it began
	}
	cfg, err := a.Load(a.Database(r.db), map[string]string{"broker.connection_name": "rabbitdelay relay"}) // status shows it
	if err != nil {
		return err
	}
	var p *probe
	if r.probe != "" {
		if p, err = listenProbe(ctx, r.probe); err != nil {
			return err
		}
		defer p.close()
	}
	db, err := openTasksDB(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // Run has returned
	listener, err := config.Listener(cfg.Database.URL)
	if err != nil {
		return fmt.Errorf("--db: %w", err)
	}
	if err := checkTasks(ctx, db); err != nil {
		return err
	}
	applied, err := a.applySchedules(ctx, db, cfg)
	if err != nil {
		return err
	}
	client, err := a.open(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }() // Run has returned
	log := a.Logger()
	if text := appliedText(applied); text != "" {
		log.Info("recurring tasks were written: " + text)
	}
	store, err := schedule.New(db, client, schedule.Config{
		Horizon: time.Duration(r.horizon), Grace: time.Duration(r.grace), MaxSends: r.maxSends, PollInterval: time.Duration(r.poll),
		Batch: r.batch, Workers: r.workers, Listener: listener, Hooks: r.hooks(), Logger: log,
	})
	if err != nil {
		return err
	}
	log.Info("relaying tasks", zap.Stringer("database", cfg.Database.URL), zap.String("broker", client.BrokerVersion()),
		zap.String("strategy", client.Strategy().Name()), zap.Bool("notified", listener != nil))
	if p != nil {
		log.Info("answering probes", zap.Stringer("address", p.at))
		p.set(func() error { return errors.Join(client.Health(), store.Health()) })
	}
	start := time.Now()
	stopping := context.AfterFunc(ctx, sync.OnceFunc(func() {
		log.Info("stopping; what is under way is finished")
		if p != nil {
			p.set(func() error { return errStopping })
		}
	}))
	defer stopping()
	err = store.Run(ctx)
	return errors.Join(err, r.summary(time.Since(start)))
}

func (r *relayRun) hooks() schedule.Hooks {
	return schedule.Hooks{
		Relayed: func(n int, resent bool) {
			if resent {
				r.resent.Add(int64(n))
			} else {
				r.sent.Add(int64(n))
			}
		},
		SendFailed: func(_ schedule.Task, _ error, failed bool) {
			if failed {
				r.failed.Add(1)
			} else {
				r.postponed.Add(1)
			}
		},
		Purged: func(n int64) { r.purged.Add(n) },
		Error:  func(string, error) { r.interruptions.Add(1) },
	}
}

// summary prints the last line.
func (r *relayRun) summary(took time.Duration) error {
	out := relayed{
		Relayed: r.sent.Load(), Resent: r.resent.Load(), Postponed: r.postponed.Load(), Failed: r.failed.Load(),
		Purged: r.purged.Load(), Errors: r.interruptions.Load(), Seconds: seconds(took),
	}
	if r.a.JSON {
		return r.a.PrintJSON(out)
	}
	r.a.Printf("%d tasks relayed, %d sent again, %d sends postponed, %d tasks failed, %d finished ones deleted, %d errors, in %.1f s\n",
		out.Relayed, out.Resent, out.Postponed, out.Failed, out.Purged, out.Errors, took.Seconds())
	return nil
}
