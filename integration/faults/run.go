package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

// Config describes a run.
type Config struct {
	Name     string   // description of the broker, for the report
	Brokers  Brokers  // required; the caller closes it
	Strategy Strategy // required
	Second   *Strategy
	Lead     time.Duration // lead of the second producer's messages, which consumers hold
	Database database.Kind // default PostgreSQL

	Kinds    []Kind        // default: all that the brokers and the database support
	Seed     uint64        // seed of the sequence of faults
	Duration time.Duration // how long messages are sent and faults are injected
	Rate     float64       // messages per second, default 150
	Tasks    float64       // tasks per second, in addition to the messages; default none
	Settle   time.Duration // maximum time to wait for the last effects, default 10 min

	Dir string            // directory for the logs and data of the processes; required
	Log func(line string) // receives progress; default: it is dropped
}

// calm is how long the workload runs before the first fault.
const calm = 3 * time.Second

// Injected is a fault that was injected.
type Injected struct {
	Fault
	Mixed         bool // another fault was active at the same time
	Began, Healed time.Time
	Over          time.Time     // when all faults that were injected together were healed
	Recovery      time.Duration // from Over until sends are confirmed and effects are on time; -1: not before the end
	Err           error         // why it could not be injected or healed
}

// Run sends a workload through the brokers while it injects faults, waits until all sent messages have their effects,
// and checks the guarantees. It returns an error only if the run itself failed. Violated guarantees are in the report.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if cfg.Log == nil {
		cfg.Log = func(string) {}
	}
	if cfg.Database == "" {
		cfg.Database = database.PostgreSQL
	}
	if cfg.Rate == 0 {
		cfg.Rate = 150
	}
	if cfg.Settle == 0 {
		cfg.Settle = 10 * time.Minute
	}
	if cfg.Kinds == nil {
		cfg.Kinds = cfg.possible()
	}
	run := &run{cfg: cfg}
	defer func() { err = errors.Join(err, run.close()) }()
	if err := run.prepare(ctx); err != nil {
		return nil, err
	}
	if err := run.work(ctx); err != nil {
		return nil, err
	}
	return run.settle(ctx)
}

// possible returns the kinds of faults that the brokers and the database support.
func (c Config) possible() []Kind {
	groups := []string{"network", "broker", "consumer", "database"}
	if c.Brokers.Nodes() > 1 {
		groups[1] = "cluster"
	}
	return slices.DeleteFunc(Kinds(groups...), func(k Kind) bool {
		switch k {
		case DatabaseRestart, DatabaseKill, LoseCommit, LoseAnswer:
			return c.Database == SQLite // it has no server
		default:
			return false
		}
	})
}

// run is a run in progress.
type run struct {
	cfg      Config
	rig      rig
	clients  []*amqpx.Client
	strategy amqpx.Strategy
	ledger   Ledger
	tasks    *tasks // nil without tasks
	awakened bool

	mu       sync.Mutex
	injected []Injected
}

const consumerProcesses = 2

func (r *run) prepare(ctx context.Context) error {
	if err := os.MkdirAll(r.cfg.Dir, 0o700); err != nil {
		return err
	}
	var err error
	r.rig.brokers = r.cfg.Brokers
	if r.rig.business, err = startBusiness(ctx, r.cfg.Database, r.cfg.Dir); err != nil {
		return err
	}
	if r.rig.network, err = newNetwork(r.cfg.Brokers); err != nil {
		return err
	}
	if err := r.connect(ctx); err != nil {
		return err
	}
	if r.cfg.Tasks > 0 {
		var err error
		if r.tasks, err = startTasks(ctx, r.rig.business.tasks, r.clients[0], &r.ledger, r.cfg.Tasks); err != nil {
			return err
		}
	}
	for _, q := range r.strategy.Topology().Queues {
		if q.MessageTTL != nil && *q.MessageTTL <= MaxDelay {
			r.rig.queues = append(r.rig.queues, q.Name)
		}
	}
	if len(r.rig.queues) == 0 { // the plugin has none
		r.rig.queues = []string{destination}
	}
	cfgs := make([]consumerConfig, consumerProcesses)
	for i := range cfgs {
		cfgs[i] = consumerConfig{
			URLs: r.rig.network.from(consuming, i), Strategy: r.cfg.Strategy,
			Driver: r.rig.business.driver, DSN: r.rig.business.dsn,
			Serializable: i == 1 && r.cfg.Database == database.PostgreSQL, Tasks: r.tasks != nil,
		}
	}
	r.rig.consumers, err = startConsumers(r.cfg.Dir, cfgs)
	return err
}

// connect opens the producers' clients, each of which starts with a different node, and declares the workload's
// objects.
func (r *run) connect(ctx context.Context) error {
	strategies := []Strategy{r.cfg.Strategy, r.cfg.Strategy}
	if r.cfg.Second != nil {
		strategies[1] = *r.cfg.Second
	}
	for i, s := range strategies {
		conf, err := clientConfig(r.rig.network.from(producing, i), s)
		if err != nil {
			return err
		}
		conf.ConnectionName = fmt.Sprintf("faults producer %d", i)
		if i == 1 && s.Name != "ttl" {
			conf.Lead = r.cfg.Lead
		}
		if conf.Logger, err = logger(fmt.Sprintf("%s/producer-%d.log", r.cfg.Dir, i)); err != nil {
			return err
		}
		openCtx, cancel := context.WithTimeout(ctx, servers.Patience)
		c, err := amqpx.Open(openCtx, conf)
		cancel()
		if err != nil {
			return err
		}
		r.clients = append(r.clients, c)
	}
	r.strategy = r.clients[0].Strategy()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := r.clients[0].Apply(ctx, workloadTopology(r.cfg.Strategy.QueueType)); err != nil {
		return err
	}
	return r.purge()
}

// work sends messages and injects faults for the duration of the run.
func (r *run) work(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Duration)
	defer cancel()
	p := &producers{clients: r.clients, strategy: r.cfg.Strategy, ledger: &r.ledger, rate: r.cfg.Rate}
	if s := r.cfg.Second; s != nil && s.Name == "ttl" {
		p.strategy = *s // the main strategy supports all of its delays
	}
	var injecting, reporting, scheduling sync.WaitGroup
	if r.tasks != nil {
		scheduling.Go(func() { r.tasks.run(ctx) })
	}
	injecting.Go(func() { r.inject(ctx) })
	reporting.Go(func() { r.progress(ctx) })
	err := p.run(ctx)
	scheduling.Wait()
	injecting.Wait() // healing may take longer than sending
	cancel()
	reporting.Wait()
	return err
}

func (r *run) inject(ctx context.Context) {
	wait(ctx, calm)
	for step := range Sequence(r.cfg.Seed, r.cfg.Kinds) {
		if ctx.Err() != nil {
			return
		}
		var running sync.WaitGroup
		first := len(r.injected)
		for _, f := range step.Faults {
			running.Go(func() {
				i := Injected{Fault: f, Mixed: len(step.Faults) > 1, Began: time.Now()}
				i.Err = r.rig.inject(ctx, f)
				i.Healed = time.Now()
				line := fmt.Sprintf("%s %s, healed after %v", clock(i.Began), f, i.Healed.Sub(i.Began).Round(time.Millisecond))
				if i.Err != nil {
					line += fmt.Sprintf(": %v", i.Err)
				}
				r.cfg.Log(line)
				r.mu.Lock()
				r.injected = append(r.injected, i)
				r.mu.Unlock()
			})
		}
		running.Wait()
		for i := range r.injected[first:] {
			r.injected[first+i].Over = time.Now()
		}
		wait(ctx, step.Rest)
	}
}

// progress logs the run's progress every half minute.
func (r *run) progress(ctx context.Context) {
	began := time.Now()
	ticker := time.NewTicker(30 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		r.mu.Lock()
		n := len(r.injected)
		r.mu.Unlock()
		r.cfg.Log(fmt.Sprintf("%s of %s: %d messages, %d faults",
			time.Since(began).Round(time.Second), r.cfg.Duration, len(r.ledger.Sent()), n))
	}
}

// settle waits until every acknowledged message has its effect and no message is waiting, and returns the report.
func (r *run) settle(ctx context.Context) (*Report, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Settle)
	defer cancel()
	began := time.Now()
	if err := r.awaitEffects(ctx); err != nil {
		return nil, err
	}
	settled := time.Since(began)
	if err := r.rig.consumers.close(); err != nil {
		return nil, err
	}
	var err error
	if r.ledger.Effects, err = r.rig.business.effects(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	if r.ledger.Seen, err = r.rig.consumers.readSeen(); err != nil {
		return nil, err
	}
	report := r.report()
	report.Settled = settled
	if report.Waiting, err = r.waiting(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	if report.Parked, report.Dead, err = r.leftOver(); err != nil {
		return nil, err
	}
	return report, nil
}

// awaitEffects waits until every acknowledged message has its effect and no message is waiting, or until ctx ends. It
// returns an error if the effects could never be read.
func (r *run) awaitEffects(ctx context.Context) error {
	began, told := time.Now(), time.Now()
	sent := r.ledger.Sent()
	var verdict Verdict
	var waiting int
	var last error
	moved := time.Now()
	for calmSince := time.Now(); ; wait(ctx, 3*time.Second) {
		effects, err := r.rig.business.effects(context.WithoutCancel(ctx))
		if err != nil {
			last = err
		} else {
			before, inQueues := verdict.Effects, waiting
			verdict = Check(sent, effects, nil)
			r.ledger.Effects = effects
			if verdict.Effects != before { // there is no need to count the queues, which takes the broker a second
				moved, calmSince = time.Now(), time.Now()
			} else {
				waiting, last = r.waiting(context.WithoutCancel(ctx))
				if waiting == 0 || waiting != inQueues {
					moved = time.Now()
				}
				if err := r.awaken(ctx, waiting, time.Since(moved)); err != nil {
					return err
				}
				if last != nil || waiting > 0 {
					calmSince = time.Now()
				}
			}
			if time.Since(told) > 30*time.Second {
				told = time.Now()
				r.cfg.Log(fmt.Sprintf("settling for %v: %d messages without their effect, %d in queues",
					time.Since(began).Round(time.Second), verdict.Lost, waiting))
			}
			if calmFor := time.Since(calmSince); verdict.Lost == 0 && calmFor > 5*time.Second {
				break
			}
		}
		if ctx.Err() != nil {
			r.cfg.Log(fmt.Sprintf("not settled within %v: %s", r.cfg.Settle, unsettled(verdict, waiting, last)))
			break
		}
	}
	if r.ledger.Effects == nil {
		return last
	}
	return nil
}

// workerPatience is longer than the time after which a broker's dead-letter worker retries a message.
const workerPatience = 4 * time.Minute

// awaken restarts the nodes once, as docs/operations.md advises, if messages have not moved for too long and the
// brokers have a version in which two concurrent elections can leave a queue without its dead-letter worker.
func (r *run) awaken(ctx context.Context, waiting int, still time.Duration) error {
	v := plan.ParseVersion(r.cfg.Brokers.Version())
	defect := v.Before(4, 2, 7) || v.AtLeast(4, 3, 0) && v.Before(4, 3, 1)
	if r.awakened || !defect || still < workerPatience || r.cfg.Brokers.Nodes() == 1 {
		return nil
	}
	r.awakened = true
	r.cfg.Log(fmt.Sprintf("%d messages have not moved for %v; restarting the nodes one by one", waiting, still.Round(time.Second)))
	for i := range r.cfg.Brokers.Nodes() {
		if err := r.cfg.Brokers.Stop(ctx, i); err != nil {
			return err
		}
		if err := r.cfg.Brokers.Start(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// unsettled describes why a run did not settle: messages without their effect, messages in queues, or an error.
func unsettled(v Verdict, waiting int, err error) string {
	const named = 5
	text := fmt.Sprintf("%d messages without their effect, %d in queues", v.Lost, waiting)
	var ids []string
	for _, b := range v.Broken {
		if b.Violation == Lost && len(ids) < named {
			ids = append(ids, b.ID)
		}
	}
	switch more := v.Lost - len(ids); {
	case more > 0:
		text += fmt.Sprintf("; without: %s and %d more", strings.Join(ids, ", "), more)
	case len(ids) > 0:
		text += "; without: " + strings.Join(ids, ", ")
	}
	if err != nil {
		text += fmt.Sprintf("; the last look failed: %v", err)
	}
	return text
}

func (r *run) close() error {
	var errs []error
	if r.rig.consumers != nil {
		_ = r.rig.consumers.close() // settle has reported its errors
	}
	if r.tasks != nil {
		r.tasks.end()
	}
	for _, c := range r.clients {
		errs = append(errs, c.Close(context.Background()))
	}
	if r.rig.network != nil {
		r.rig.network.close()
	}
	if r.rig.business != nil {
		errs = append(errs, r.rig.business.close())
	}
	return errors.Join(errs...)
}
