// Package database starts private PostgreSQL, MariaDB, MySQL and Redis servers
// for the tests, from the installed programs, in a temporary directory and on a
// free port of 127.0.0.1; MySQL also in a container. What it starts does not outlive the process, whether that
// returns, is interrupted, panics or is killed.
package database

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// A Kind is a kind of database server.
type Kind string

// The kinds there are.
const (
	PostgreSQL Kind = "PostgreSQL"
	MariaDB    Kind = "MariaDB"
	MySQL      Kind = "MySQL"
	Redis      Kind = "Redis"
)

// Environment variables that name a running server to be used instead of a
// private one, as postgres://user:password@host:port/database and
// mysql://user:password@host:port/database.
const (
	EnvPostgreSQL = "RABBITDELAY_POSTGRES_URL"
	EnvMariaDB    = "RABBITDELAY_MARIADB_URL"
	EnvMySQL      = "RABBITDELAY_MYSQL_URL"
)

var (
	// ErrNotInstalled is wrapped when the programs of a server are not there.
	// The error around it names the package.
	ErrNotInstalled = errors.New("the server is not installed")

	// ErrNotOurs is returned by methods that control a server which Start did
	// not start.
	ErrNotOurs = errors.New("the server was given by the environment and is not controlled from here")
)

// Options say how a server is started.
type Options struct {
	// Durable makes the server wait for the disk at every commit, as it does by
	// default for its users. Otherwise a commit survives the death of the server
	// but not that of the machine, and tests are faster.
	Durable bool

	// Dir is where the temporary directory is made. Default: os.TempDir.
	Dir string
}

// A Server is a database server in use. Its methods are safe for concurrent
// use.
type Server struct {
	kind     Kind
	url      string
	engine   engine // nil for a server that was not started here
	guard    *guard.Guard
	instance instance

	mu      sync.Mutex
	process *guard.Process // nil when it does not run
	closed  bool
}

// instance is what an engine is told about one server.
type instance struct {
	dir      string
	port     int
	password string
	durable  bool
	system   account

	container string // its name, for a server in a container
}

// name is the user and the database of every private server.
const name = "rabbitdelay"

// engine knows the programs of one kind of server.
type engine interface {
	// prepare creates the data directory.
	prepare(ctx context.Context, s *Server) error

	// command returns the path and arguments of the server.
	command(i instance) []string

	// ready returns nil when the server answers and the database and the user
	// are there.
	ready(ctx context.Context, i instance) error

	url(i instance) string
	stopSignal() os.Signal
	account() string // in which the server runs when this process is root's, or ""

	// stopping, killed and removed are called before the process is asked to end,
	// when it is killed, and when the server is not wanted any more.
	stopping(ctx context.Context, i instance) error
	killed(i instance) error
	removed(i instance) error
}

// installed is part of an engine whose process is the server itself.
type installed struct{}

func (installed) stopping(context.Context, instance) error { return nil }
func (installed) killed(instance) error                    { return nil }
func (installed) removed(instance) error                   { return nil }

const (
	startup = time.Minute
	poll    = 50 * time.Millisecond
)

// Start starts a private server and returns when it answers, or takes the one
// that the environment names. ctx bounds the start and not the life of the
// server; call Close. It fails with an error that wraps ErrNotInstalled when
// the programs are not there.
func Start(ctx context.Context, kind Kind, o Options) (_ *Server, err error) {
	var e engine
	var given string
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

	s.instance.password, s.instance.durable = rand.Text(), o.Durable
	s.instance.system, err = lookupAccount(e.account())
	if err != nil {
		return nil, err
	}
	s.instance.dir, err = os.MkdirTemp(o.Dir, "rabbitdelay-database-")
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
	// A port may be taken between its choice and its use.
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

// URL returns the address with user, password and database, such as
// postgres://rabbitdelay:…@127.0.0.1:23456/rabbitdelay. The schemes are
// postgres, mysql and redis.
func (s *Server) URL() string { return s.url }

// RedactedURL returns the URL for people to read, without the password.
func (s *Server) RedactedURL() string {
	u, err := url.Parse(s.url)
	if err != nil {
		return "(a URL that cannot be parsed)" // the error may quote the password
	}
	return u.Redacted()
}

// Driver returns the name under which database/sql knows the driver: pgx or
// mysql.
func (s *Server) Driver() string {
	switch s.kind {
	case PostgreSQL:
		return "pgx"
	case MariaDB, MySQL:
		return "mysql"
	default:
		return ""
	}
}

// DSN returns the address in the form that the driver takes: for pgx the URL,
// for mysql user:password@tcp(host:port)/database with parseTime.
func (s *Server) DSN() string {
	if s.Driver() != "mysql" {
		return s.url
	}
	u, err := url.Parse(s.url)
	if err != nil {
		return s.url // the driver refuses it
	}
	password, _ := u.User.Password()
	query := u.Query()
	if !query.Has("parseTime") {
		query.Set("parseTime", "true")
	}
	return fmt.Sprintf("%s:%s@tcp(%s)%s?%s", u.User.Username(), password, u.Host, u.Path, query.Encode())
}

// Stop ends the server in good order. Its data and its port are kept for Start.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return ErrNotOurs
	}
	if s.process == nil {
		return nil
	}
	err := errors.Join(s.engine.stopping(ctx, s.instance), s.process.Stop(ctx, s.engine.stopSignal()))
	s.process = nil
	return err
}

// Kill ends the server as a crash would.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return ErrNotOurs
	}
	return s.kill()
}

func (s *Server) kill() error {
	if s.process == nil {
		return nil
	}
	err := errors.Join(s.engine.killed(s.instance), s.process.Kill())
	s.process = nil
	return err
}

// Start starts the server after Stop or Kill, with the data and under the URL
// that it had, and returns when it answers.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.engine == nil:
		return ErrNotOurs
	case s.closed:
		return errors.New("database: closed")
	case s.process != nil:
		return errors.New("database: it runs already")
	}
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	return s.start(ctx)
}

// Restart is Stop and Start.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Close ends the server and removes its directory. It does nothing to a server
// that Start did not start, and nothing the second time.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil || s.closed {
		return nil
	}
	s.closed = true
	err := s.kill() // nothing of the data is wanted any more
	if s.instance.dir != "" {
		err = errors.Join(err, s.engine.removed(s.instance), s.instance.system.remove(s.instance.dir))
	}
	if err != nil {
		// The guard stays on watch: it tries again when the process ends.
		return fmt.Errorf("database: not all was removed: %w", err)
	}
	return s.guard.Dismiss()
}

// start runs the server's program and waits until it answers. A server that
// finds the remains of its killed predecessor still in memory is started again.
func (s *Server) start(ctx context.Context) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		err := s.launch(ctx, ticker)
		if err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "pre-existing shared memory block") {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

func (s *Server) launch(ctx context.Context, ticker *time.Ticker) error {
	p, err := s.run(s.engine.command(s.instance)...)
	if err != nil {
		return err
	}
	s.process = p
	for {
		err := s.engine.ready(ctx, s.instance)
		if err == nil {
			return nil
		}
		select {
		case <-p.Ended():
			err = fmt.Errorf("the server ended; the end of its log:\n%s", s.log())
			return errors.Join(err, s.kill())
		case <-ctx.Done():
			err = fmt.Errorf("the server did not come up: %w; the last attempt: %w; the end of its log:\n%s", ctx.Err(), err, s.log())
			return errors.Join(err, s.kill())
		case <-ticker.C:
		}
	}
}

// run starts a program under the guard in the account of the server, with its
// output in the server's log.
func (s *Server) run(command ...string) (*guard.Process, error) {
	// A log of its own for each run: only the last one's is ever asked for.
	output, err := os.Create(s.logFile())
	if err != nil {
		return nil, err
	}
	defer output.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = s.instance.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+s.instance.dir)
	cmd.Stdout, cmd.Stderr = output, output
	s.instance.system.become(cmd)
	p, err := s.guard.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command[0], err)
	}
	return p, nil
}

// finish runs a program to its end.
func (s *Server) finish(ctx context.Context, command ...string) error {
	p, err := s.run(command...)
	if err != nil {
		return err
	}
	if err := p.Wait(ctx); err != nil {
		return fmt.Errorf("%s: %w; the end of what it said:\n%s", command[0], err, s.log())
	}
	return nil
}

// write writes a file into the server's directory that its account can read.
func (s *Server) write(file, content string) error {
	path := filepath.Join(s.instance.dir, file)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return s.instance.system.own(path)
}

func (s *Server) logFile() string { return filepath.Join(s.instance.dir, "log") }

func (s *Server) log() string {
	const lines = 20
	content, err := os.ReadFile(s.logFile())
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// lookProgram finds a program in the path, or where Debian keeps servers, which
// is not in the path of everybody.
func lookProgram(program, debianPackage string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	path := "/usr/sbin/" + program
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return "", missing(program, debianPackage)
}

func missing(program, debianPackage string) error {
	return fmt.Errorf("%w: there is no %s; install the package %s (`make setup` does)", ErrNotInstalled, program, debianPackage)
}
