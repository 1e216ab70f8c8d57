// Package database starts private PostgreSQL, MariaDB, MySQL and Redis servers for tests, and PgBouncer in front of a
// PostgreSQL server. It runs the installed programs in a temporary directory and on a free port of 127.0.0.1. MySQL can
// also run in a container. A server does not outlive the process, whether the process returns, is interrupted, panics
// or is killed.
package database

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// A Kind is a kind of database server.
type Kind string

// The supported kinds.
const (
	PostgreSQL Kind = "PostgreSQL"
	MariaDB    Kind = "MariaDB"
	MySQL      Kind = "MySQL"
	Redis      Kind = "Redis"
)

// Environment variables with the URL of a running server to use instead of a private one, such as
// postgres://user:password@host:port/database or mysql://user:password@host:port/database.
const (
	EnvPostgreSQL = "RABBITDELAY_POSTGRES_URL"
	EnvMariaDB    = "RABBITDELAY_MARIADB_URL"
	EnvMySQL      = "RABBITDELAY_MYSQL_URL"
)

var (
	// ErrNotInstalled is wrapped if a server's programs are not installed. The wrapping error names the package.
	ErrNotInstalled = errors.New("the server is not installed")

	// ErrNotOurs is returned by methods that control a server if Start did not start that server.
	ErrNotOurs = errors.New("the server is one from the environment and was not started by this process, so it cannot be stopped or controlled")
)

// Options configures how a server is started.
type Options struct {
	// Durable makes the server sync to the disk as it does by default: at every commit, or every second for Redis.
	// Otherwise, to make tests faster, a commit survives the death of the server but not that of the machine, and the
	// data is kept in memory if enough memory is free.
	Durable bool

	// Snapshots makes a Redis server persist its data as RDB snapshots, as it does by default and in Debian's package:
	// no earlier than a minute after a change, and on shutdown. Otherwise it uses an append-only file (AOF).
	Snapshots bool

	// Statements makes PostgreSQL count the statements that it executes, in pg_stat_statements.
	Statements bool
}

// A Server is a running database server. Its methods are safe for concurrent use.
type Server struct {
	kind     Kind
	url      string
	engine   engine // nil for a server that was not started here
	guard    *guard.Guard
	instance instance

	mu      sync.Mutex
	process *guard.Process // nil while it does not run
	closed  bool
}

// instance holds the settings of one server.
type instance struct {
	dir      string
	port     int
	password string
	durable  bool
	snapshot bool // Redis only
	counts   bool // statements; PostgreSQL only
	system   account

	container string // its name, for a server in a container
}

// name is the name of the user and the database of every private server.
const name = "rabbitdelay"

// engine runs the programs of one kind of server.
type engine interface {
	// prepare creates the data directory.
	prepare(ctx context.Context, s *Server) error

	// command returns the path and arguments of the server.
	command(i instance) []string

	// ready returns nil if the server answers and the database and the user exist.
	ready(ctx context.Context, i instance) error

	url(i instance) string
	stopSignal() os.Signal
	account() string // the server's account if this process runs as root, or ""

	// stopping is called before the process is asked to stop, killed when it is killed, and removed when the server is
	// no longer needed.
	stopping(ctx context.Context, i instance) error
	killed(i instance) error
	removed(i instance) error
}

// installed is embedded in engines whose process is the server itself.
type installed struct{}

func (installed) stopping(context.Context, instance) error { return nil }
func (installed) killed(instance) error                    { return nil }
func (installed) removed(instance) error                   { return nil }

const (
	startup = 3 * time.Minute
	poll    = 50 * time.Millisecond
)

// Start starts a private server and returns when it answers. If the environment names a running server, it uses that
// one instead. The context applies only to starting, not to the life of the server, so call Close when you no longer
// need it. The error wraps ErrNotInstalled if the programs are not installed.
func Start(ctx context.Context, kind Kind, o Options) (*Server, error) {
	var e engine
	var given string
	var err error
	switch kind {
	case PostgreSQL:
		given = os.Getenv(EnvPostgreSQL)
		e, err = findPostgreSQL()
	case MariaDB:
		given = os.Getenv(EnvMariaDB)
		e, err = findMariaDB()
	case MySQL:
		if given = os.Getenv(EnvMySQL); given == "" {
			e, err = findMySQL(ctx)
		}
	case Redis:
		e, err = findRedis()
	default:
		return nil, fmt.Errorf("database: unknown kind %q", kind)
	}
	if given != "" {
		return &Server{kind: kind, url: given}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("database: %s: %w", kind, err)
	}
	return begin(ctx, kind, e, o)
}

// begin starts a private server by its engine.
func begin(ctx context.Context, kind Kind, e engine, o Options) (_ *Server, err error) {
	s := &Server{kind: kind, engine: e}
	s.guard, err = guard.New()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("database: %s: %w", kind, err), s.Close())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()

	s.instance.password, s.instance.durable, s.instance.snapshot, s.instance.counts = rand.Text(), o.Durable, o.Snapshots, o.Statements
	s.instance.system, err = lookupAccount(e.account())
	if err != nil {
		return nil, err
	}
	var parent string
	if !o.Durable {
		parent = inMemory()
	}
	s.instance.dir, err = os.MkdirTemp(parent, "rabbitdelay-database-")
	if err != nil {
		return nil, err
	}
	if err := s.guard.Directory(s.instance.dir); err != nil {
		return nil, err
	}
	if err := s.instance.system.own(s.instance.dir); err != nil {
		return nil, err
	}
	if err := e.prepare(ctx, s); err != nil {
		return nil, err
	}
	// Another process may take a port after it was chosen and before it is used.
	for attempt := 0; ; attempt++ {
		ports, err := loopback.Ports(1)
		if err != nil {
			return nil, err
		}
		s.instance.port = ports[0]
		s.url = e.url(s.instance)
		err = s.start(ctx)
		if err == nil {
			return s, nil
		}
		if attempt == 2 || !strings.Contains(strings.ToLower(err.Error()), "address already in use") {
			return nil, err
		}
		if err := e.removed(s.instance); err != nil {
			return nil, err
		}
	}
}
