package service

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Config configures a Core. Every field is optional.
type Config struct {
	Store *taskview.Store
	DB    *sql.DB // the database of Store
	// Client returns the client that requeues and discards dead letters. It is called for each dry run and each job.
	Client func() (*amqpx.Client, error)
	// Broker returns the source for an inspection of the broker. Source.Tasks and Source.Peek are not used.
	Broker func(ctx context.Context) (status.Source, error)
	// Previous returns the layouts that Retire deletes.
	Previous func(ctx context.Context) (topology.Topology, error)
	// Problem returns the reason why the process cannot do its work, or nil.
	Problem func() error
	// Keep is how long audit entries and jobs are kept. If it is zero, each purge deletes all of them except running
	// jobs.
	Keep time.Duration
	// Discarded is the directory in which discarded messages are saved. If it is empty, messages cannot be discarded.
	Discarded string
	Logger    *zap.Logger
}

// Core implements everything that the pages and the API can show or change. Methods that change something return
// ErrForbidden unless the caller is an operator, and they record the caller in the audit before they change anything.
// Methods return ErrUnavailable if this process lacks the database or the broker that they need.
type Core struct {
	cfg     Config
	log     *zap.Logger
	ledger  ledger
	ctx     context.Context // cancelled by Close
	cancel  context.CancelFunc
	working sync.WaitGroup

	shared     sharedOverview
	history    history
	histograms kept[Histogram]
	errors     kept[deadletters.ErrorGroups]
	suggested  suggestions
	owner      string
	purged     atomic.Pointer[error] // the outcome of the last purge of the ledger
	unkept     atomic.Pointer[error] // the outcome of the last update of the history
}

// New starts the background work of a Core, and returns it without waiting for the database or the broker. Close stops
// the background work.
func New(cfg Config) *Core {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	c := &Core{cfg: cfg, log: cfg.Logger, owner: newID(), ledger: &memory{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if cfg.DB != nil {
		db := sqldb.Of(cfg.DB)
		t := &table{db: db, dialect: sqldb.NewResolver(db, "")}
		c.ledger = t
		c.working.Go(func() { c.keepHistory(t) })
	}
	c.working.Go(c.purgeOld)
	return c
}

// Close stops the background work, including the jobs of this process, and waits until it has ended or ctx ends.
// Another process on the same database can continue the jobs.
func (c *Core) Close(ctx context.Context) error {
	c.cancel()
	ended := make(chan struct{})
	go func() {
		c.working.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
