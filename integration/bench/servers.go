package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres" // postgres://
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// run is one call to Run, with the servers that it started.
type run struct {
	o      Options
	result *Result
	tag    string // part of this run's object names, for brokers with other users
	opened int    // number of opened clients

	brokers map[place]*broker.Broker // brokers of the current scenario
	site    *site                    // only in the scenario console
	db      *sql.DB                  // nil until needed
	dbURL   string
	redis   *redis.Client  // nil until needed
	closing []func() error // closes the databases
}

func newRun(o Options) *run {
	return &run{
		o:       o,
		tag:     fmt.Sprintf("rabbitdelay-bench-%x", time.Now().UnixNano()&0xffffff),
		brokers: map[place]*broker.Broker{},
		result:  &Result{Started: time.Now(), Quick: o.Quick, Machine: Machine{runtime.GOOS + "/" + runtime.GOARCH, runtime.NumCPU(), runtime.Version()}, Sizes: o.Sizes},
	}
}

func (r *run) close() error {
	errs := []error{r.closeBrokers()}
	for _, f := range slices.Backward(r.closing) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

func (r *run) closeBrokers() error {
	var errs []error
	for _, b := range r.brokers {
		errs = append(errs, b.Close())
	}
	clear(r.brokers)
	return errors.Join(errs...)
}

// place is the kind of broker that a group needs.
type place string

const (
	newest   place = "" // the newest available broker, or the one that was given
	plugged  place = " with the x-delayed-message plugin"
	delaying place = ", which delays messages until a given time"
)

// at returns the scenario's broker of the given kind. It starts the broker on first use.
func (r *run) at(ctx context.Context, s *Scenario, p place) (*broker.Broker, error) {
	b, ok := r.brokers[p]
	if !ok {
		o := broker.Options{URL: r.o.URL, Durable: true, Log: r.o.Log}
		var err error
		switch p {
		case plugged:
			o.Plugin = true
			o.Version, err = r.pluginLine(ctx)
		case delaying:
			_, o.Version, _ = strings.Cut(os.Getenv(broker.EnvNextImage), ":") // without an image, the newest version may support it
		}
		if err != nil {
			return nil, err
		}
		if b, err = broker.Start(ctx, o); err != nil {
			return nil, err
		}
		r.brokers[p] = b
	}
	if p == delaying {
		err := live.ProbeInstants(ctx, "rabbitdelay-bench", func(context.Context) (*amqp.Connection, error) { return dialRaw(b.URL()) })
		if errors.Is(err, live.ErrInstantsIgnored) {
			return nil, fmt.Errorf("%w: RabbitMQ %s does not delay messages until a given time; set %s to an image of one that does", errLeftOut, b.Version(), broker.EnvNextImage)
		}
		if err != nil {
			return nil, err
		}
	}
	s.Uses("RabbitMQ " + b.Version() + string(p))
	return b, nil
}

// pluginLine returns the newest release line for which both a broker and the plugin are available.
func (r *run) pluginLine(ctx context.Context) (string, error) {
	if r.o.URL != "" || os.Getenv(broker.EnvURL) != "" {
		return "", fmt.Errorf("%w: the broker was given by the environment, so no second one with the plugin is started", errLeftOut)
	}
	lines, err := broker.Versions(ctx)
	if err != nil {
		return "", err
	}
	why := "no RabbitMQ broker is available"
	for _, line := range slices.Backward(lines) {
		file, reason := broker.PluginAvailable(line)
		if file != "" {
			return line, nil
		}
		why = reason
	}
	return "", fmt.Errorf("%w: %s", errLeftOut, why)
}

// need starts a server that a case needs in addition to the broker.
type need func(ctx context.Context, r *run, s *Scenario) error

// postgres sets r.db to a PostgreSQL database with the tables of idempotency and schedule.
func postgres(ctx context.Context, r *run, s *Scenario) error {
	if r.db == nil {
		server, err := r.start(ctx, database.PostgreSQL)
		if err != nil {
			return err
		}
		db, _, err := config.OpenDB(config.URL(server.URL()))
		if err != nil {
			return err
		}
		db.SetMaxOpenConns(100)
		db.SetMaxIdleConns(100)
		r.db, r.dbURL, r.closing = db, server.URL(), append(r.closing, db.Close)
		if err := errors.Join(idempotency.Migrate(ctx, db), schedule.Migrate(ctx, db)); err != nil {
			return err
		}
	}
	var version string
	if err := r.db.QueryRowContext(ctx, "SHOW server_version").Scan(&version); err != nil {
		return err
	}
	s.Uses("PostgreSQL " + version)
	return nil
}

// redisServer sets r.redis.
func redisServer(ctx context.Context, r *run, s *Scenario) error {
	if r.redis == nil {
		server, err := r.start(ctx, database.Redis)
		if err != nil {
			return err
		}
		options, err := redis.ParseURL(server.URL())
		if err != nil {
			return errors.New("the URL of Redis cannot be parsed")
		}
		r.redis = redis.NewClient(options)
		r.closing = append(r.closing, r.redis.Close)
	}
	s.Uses("Redis")
	return nil
}

// start starts a server that syncs to the disk as it does by default.
func (r *run) start(ctx context.Context, kind database.Kind) (*database.Server, error) {
	server, err := database.Start(ctx, kind, database.Options{Durable: true})
	if errors.Is(err, database.ErrNotInstalled) {
		return nil, fmt.Errorf("%w: %w", errLeftOut, err)
	}
	if err != nil {
		return nil, err
	}
	r.closing = append(r.closing, server.Close)
	return server, nil
}

// empty deletes all rows of a table.
func (r *run) empty(ctx context.Context, table string) error {
	_, err := r.db.ExecContext(context.WithoutCancel(ctx), "TRUNCATE "+table+" CASCADE")
	return err
}
