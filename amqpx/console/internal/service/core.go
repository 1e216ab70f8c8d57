package service

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Config is what a Core works on. Each part may be missing.
type Config struct {
	Store *schedule.Store
	DB    *sql.DB // of Store
	// Client is asked for each requeue.
	Client func() (*amqpx.Client, error)
	// Look says how broker and tasks are looked at; its Tasks is not used.
	Look func(ctx context.Context) (status.Source, error)
	// Previous are the layouts that Retire deletes.
	Previous func(ctx context.Context) (topology.Topology, error)
	// Problem is what keeps the process from working.
	Problem func() error
	// Keep is how long entries of the audit and jobs are kept.
	Keep   time.Duration
	Logger *zap.Logger
}

// Core is the Service on a database and a broker.
type Core struct {
	cfg     Config
	log     *zap.Logger
	ledger  ledger
	ctx     context.Context // of what is under way
	cancel  context.CancelFunc
	working sync.WaitGroup

	looks      looks
	late       lateness
	histograms histograms
	owner      string
	purged     atomic.Pointer[error] // how the last purge of the ledger went
}

var _ Service = (*Core)(nil)

// New returns at once. Close ends what it has started.
func New(cfg Config) *Core {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	c := &Core{cfg: cfg, log: cfg.Logger, owner: newID()}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.ledger = &memory{}
	if cfg.DB != nil {
		db := sqldb.Of(cfg.DB)
		c.ledger = &table{db: db, dialect: sqldb.NewResolver(db, "")}
	}
	c.working.Go(c.keep)
	return c
}

// Close ends the jobs of this process, which another can continue, and waits for
// them until ctx ends.
func (c *Core) Close(ctx context.Context) error {
	c.cancel()
	done := make(chan struct{})
	go func() {
		c.working.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Core) store() (*schedule.Store, error) {
	if c.cfg.Store == nil {
		return nil, fmt.Errorf("%w: this process has no database of tasks", ErrUnavailable)
	}
	return c.cfg.Store, nil
}

func (c *Core) source(ctx context.Context) (status.Source, error) {
	if c.cfg.Look == nil {
		return status.Source{}, fmt.Errorf("%w: this process has no broker to look at", ErrUnavailable)
	}
	src, err := c.cfg.Look(ctx)
	src.Broker.Hasty = true // who looks at a page waits for it, and it is renewed
	return src, ofBroker(err)
}

// harmless are headers that tell nobody's secrets.
func harmless(name string) bool {
	name = strings.ToLower(name)
	return name == "traceparent" || strings.HasPrefix(name, "rabbitdelay-") || strings.HasPrefix(name, "x-death") || strings.HasPrefix(name, "x-first-death")
}

// Hidden stands for what only an operator may see.
const Hidden = "(hidden)"

// veil takes out of a task what only an operator may see.
func veil(who Identity, t *schedule.Task) {
	if who.Role.May(RoleOperator) {
		return
	}
	t.Body, t.Headers = nil, veiled(t.Headers, Hidden)
}

// veilDead is veil for messages.
func veilDead(who Identity, list []amqpx.DeadLetter) {
	if who.Role.May(RoleOperator) {
		return
	}
	for i := range list {
		d := *list[i].Delivery
		d.Body, d.Headers = nil, veiled[any](d.Headers, Hidden)
		list[i].Delivery = &d
	}
}

func veiled[V any](headers map[string]V, hidden V) map[string]V {
	out := make(map[string]V, len(headers))
	for name, value := range headers {
		if !harmless(name) {
			value = hidden
		}
		out[name] = value
	}
	return out
}
