package service

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Config is what a Core works on. Each part may be missing.
type Config struct {
	Store *schedule.Store
	DB    *sql.DB // of Store
	// Client returns the client that requeues; it is called for each requeue.
	Client func() (*amqpx.Client, error)
	// Look returns how to look at the broker; Source.Tasks is not used.
	Look func(ctx context.Context) (status.Source, error)
	// Previous returns the layouts that Retire deletes.
	Previous func(ctx context.Context) (topology.Topology, error)
	// Problem returns what keeps the process from working, if anything.
	Problem func() error
	// Keep is how long audit entries and jobs are kept.
	Keep time.Duration
	// Discarded is the directory in which discards keep messages; "" for no discards.
	Discarded string
	Logger    *zap.Logger
}

// Core is everything that pages and API can see or do. Methods that change something need
// an operator (ErrForbidden) and record who did it before they do it. A method whose
// database or broker this process lacks returns ErrUnavailable.
type Core struct {
	cfg     Config
	log     *zap.Logger
	ledger  ledger
	ctx     context.Context // ends with the Core
	cancel  context.CancelFunc
	working sync.WaitGroup

	looks      looks
	history    history
	histograms kept[Histogram]
	errors     kept[inspect.ErrorGroups]
	suggested  suggestions
	owner      string
	purged     atomic.Pointer[error] // the outcome of the last purge of the ledger
	unkept     atomic.Pointer[error] // the outcome of the last writing of the history
}

// New returns a Core at once, without connecting to anything. Close ends what it started.
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

// Close ends the jobs of this process, which another process can continue, and waits for
// them until ctx ends.
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
