package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
)

// server is one of the servers that contenders use.
type server string

const (
	rabbitMQ        server = "RabbitMQ"
	pluggedRabbitMQ server = "RabbitMQ with the x-delayed-message plugin"
	postgreSQL      server = "PostgreSQL"
	redisServer     server = "Redis"

	limits server = "control groups" // what the workload starved needs
)

// env holds the servers of a run. They are configured as users run them: RabbitMQ and PostgreSQL sync to the disk, and
// Redis takes snapshots, which is the default of Debian's package.
type env struct {
	broker, plugged *broker.Broker // plugged is nil without the plugin
	postgres, redis *database.Server
	versions        map[server]string
	without         map[server]string // the reasons why servers are missing
	limit           *limit            // nil until the workload starved begins
	connections     int               // the size of each contender's pool of connections to PostgreSQL

	opened  atomic.Int64 // number of names that were given to contenders
	redisDB atomic.Int64 // number of Redis databases that were given to contenders
}

// start starts all servers.
func start(ctx context.Context, log func(line string)) (_ *env, err error) {
	e := &env{versions: map[server]string{}, without: map[server]string{}, connections: writers}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	var mu sync.Mutex
	found := func(s server, version string, err error) error {
		mu.Lock()
		defer mu.Unlock()
		e.versions[s] = version
		return err
	}
	all, starting := errgroup.WithContext(ctx)
	all.Go(func() (err error) {
		if e.broker, err = broker.Start(starting, broker.Options{Durable: true, Log: log}); err != nil {
			return err
		}
		return found(rabbitMQ, e.broker.Version(), nil)
	})
	all.Go(func() (err error) {
		if e.postgres, err = database.Start(starting, database.PostgreSQL, database.Options{Durable: true, Statements: true}); err != nil {
			return err
		}
		version, err := postgresVersion(starting, e.postgres.URL())
		return found(postgreSQL, version, err)
	})
	all.Go(func() (err error) {
		if e.redis, err = database.Start(starting, database.Redis, database.Options{Snapshots: true}); err != nil {
			return err
		}
		version, err := redisVersion(starting, e.redis.URL())
		return found(redisServer, version, err)
	})
	all.Go(func() (err error) {
		line, reason := pluginLine(starting)
		if reason != "" {
			e.without[pluggedRabbitMQ] = reason
			return nil
		}
		if e.plugged, err = broker.Start(starting, broker.Options{Version: line, Plugin: true, Durable: true, Log: log}); err != nil {
			return err
		}
		return found(pluggedRabbitMQ, e.plugged.Version(), nil)
	})
	return e, all.Wait()
}

// pluginLine returns the newest release line of RabbitMQ that has a file of the plugin, or the reason why there is
// none.
func pluginLine(ctx context.Context) (line, reason string) {
	lines, err := broker.Versions(ctx)
	if err != nil {
		return "", err.Error()
	}
	for _, line := range slices.Backward(lines) {
		if path, _ := broker.PluginAvailable(line); path != "" {
			return line, ""
		}
	}
	return "", "the cache folder contains no plugin file for RabbitMQ " + strings.Join(lines, " or ")
}

func (e *env) close() error {
	var errs []error
	for _, b := range []*broker.Broker{e.broker, e.plugged} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	for _, s := range []*database.Server{e.postgres, e.redis} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if e.limit != nil {
		errs = append(errs, e.limit.close())
	}
	return errors.Join(errs...)
}

// controlled is implemented by a server that can be stopped.
type controlled interface {
	Start(ctx context.Context) error
	Restart(ctx context.Context) error
}

// of returns the control of a server, and a function that kills it.
func (e *env) of(s server) (c controlled, kill func(ctx context.Context) error) {
	switch s {
	case postgreSQL:
		return e.postgres, func(context.Context) error { return e.postgres.Kill() }
	case redisServer:
		return e.redis, func(context.Context) error { return e.redis.Kill() }
	case pluggedRabbitMQ:
		return e.plugged, e.plugged.Kill
	default:
		return e.broker, e.broker.Kill
	}
}

// processID returns the ID of a server's process.
func (e *env) processID(ctx context.Context, s server) (int, error) {
	switch s {
	case postgreSQL:
		return e.postgres.ProcessID()
	case redisServer:
		return e.redis.ProcessID()
	case pluggedRabbitMQ:
		return e.plugged.ProcessID(ctx)
	default:
		return e.broker.ProcessID(ctx)
	}
}

// name returns a name for a contender's objects that no other has in this run.
func (e *env) name() string { return fmt.Sprintf("compare_%d", e.opened.Add(1)) }

// effects is the table of effects in every contender's database.
const effects = "CREATE TABLE effects (number BIGINT NOT NULL)"

// database creates a database for a contender. The function drop removes it.
func (e *env) database(ctx context.Context) (dsn string, drop func(ctx context.Context) error, err error) {
	name := e.name()
	admin := func(ctx context.Context, statement string) error {
		return onDatabase(ctx, e.postgres.URL(), func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, statement)
			return err
		})
	}
	if err := admin(ctx, "CREATE DATABASE "+name); err != nil {
		return "", nil, err
	}
	drop = func(ctx context.Context) error { return admin(ctx, "DROP DATABASE "+name+" WITH (FORCE)") }
	u, err := url.Parse(e.postgres.URL())
	if err != nil {
		return "", nil, errors.Join(err, drop(ctx))
	}
	u.Path = "/" + name
	err = onDatabase(ctx, u.String(), func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, effects)
		return err
	})
	if err != nil {
		return "", nil, errors.Join(err, drop(ctx))
	}
	return u.String(), drop, nil
}

func onDatabase(ctx context.Context, dsn string, do func(conn *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close(ctx))
}

func postgresVersion(ctx context.Context, dsn string) (version string, err error) {
	err = onDatabase(ctx, dsn, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
	})
	version, _, _ = strings.Cut(version, " ")
	return version, err
}

// redisOptions returns the options of a client for a separate, empty database.
func (e *env) redisOptions() (*redis.Options, error) {
	o, err := redis.ParseURL(e.redis.URL())
	if err == nil {
		o.DB = 1 + int(e.redisDB.Add(1)%15) // Redis has 16 databases by default
	}
	return o, err
}

func redisVersion(ctx context.Context, address string) (string, error) {
	o, err := redis.ParseURL(address)
	if err != nil {
		return "", err
	}
	c := redis.NewClient(o)
	defer func() { _ = c.Close() }()
	return redisInfo(ctx, c, "server", "redis_version")
}

// redisInfo returns a field of Redis's INFO.
func redisInfo(ctx context.Context, c *redis.Client, section, field string) (string, error) {
	info, err := c.Info(ctx, section).Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+":"); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("INFO %s contains no %s", section, field)
}

func redisNumber(ctx context.Context, c *redis.Client, section, field string) (float64, error) {
	value, err := redisInfo(ctx, c, section, field)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(value, 64)
}
