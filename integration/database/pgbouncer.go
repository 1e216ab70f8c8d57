package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
)

// PgBouncer is the kind of the servers that StartPgBouncer starts.
const PgBouncer Kind = "PgBouncer"

// PoolMode says how PgBouncer assigns a connection of the server to a client.
type PoolMode string

// The modes of PgBouncer that can run transactions.
const (
	PerSession     PoolMode = "session"     // until the client disconnects
	PerTransaction PoolMode = "transaction" // until a transaction ends
)

// Pooling configures a PgBouncer.
type Pooling struct {
	Mode PoolMode
	Size int // number of connections to each database of the server
}

// StartPgBouncer starts a private PgBouncer in front of all databases of a PostgreSQL server, with the server's user
// and password. Only the host of its URL differs from the server's. The error wraps ErrNotInstalled if the program is
// not installed. Call Close when you no longer need it.
func StartPgBouncer(ctx context.Context, server *Server, p Pooling) (*Server, error) {
	program, err := lookProgram("pgbouncer", "pgbouncer")
	if err != nil {
		return nil, fmt.Errorf("database: %s: %w", PgBouncer, err)
	}
	behind, err := url.Parse(server.url)
	if err != nil {
		return nil, errors.New("database: the server has a URL that cannot be parsed") // the error may contain the password
	}
	return begin(ctx, PgBouncer, pgBouncer{program: program, server: behind, pooling: p}, Options{})
}

// pgBouncer is the engine for PgBouncer.
type pgBouncer struct {
	installed

	program string
	server  *url.URL // the PostgreSQL server
	pooling Pooling
}

func (b pgBouncer) prepare(_ context.Context, s *Server) error {
	password, _ := b.server.User.Password()
	quoted := func(text string) string { return `"` + strings.ReplaceAll(text, `"`, `""`) + `"` }
	if err := s.write("users.txt", quoted(b.server.User.Username())+" "+quoted(password)+"\n"); err != nil {
		return err
	}
	return s.write("pgbouncer.ini", fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
%%include port.ini
listen_addr = %s
unix_socket_dir =
auth_type = scram-sha-256
auth_file = users.txt
pool_mode = %s
default_pool_size = %d
max_client_conn = 500
`, b.server.Hostname(), cmp.Or(b.server.Port(), "5432"), loopback.Host, b.pooling.Mode, b.pooling.Size))
}

// command writes the port into the configuration, because PgBouncer takes no settings as arguments.
func (b pgBouncer) command(i instance) []string {
	return []string{
		"/bin/sh", "-c", `echo "listen_port = $1" >port.ini && exec "$2" pgbouncer.ini`,
		"sh", strconv.Itoa(i.port), b.program,
	}
}

// ready requests TLS, because PgBouncer answers this before a login.
func (pgBouncer) ready(ctx context.Context, i instance) error {
	conn, err := dial(ctx, i.port)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if answer[0] != 'N' {
		return fmt.Errorf("the server answered %q, want N for no TLS", answer)
	}
	return nil
}

func (b pgBouncer) url(i instance) string {
	u := *b.server
	u.Host = loopback.Address(i.port)
	return u.String()
}

// stopSignal returns the signal for a shutdown that does not wait for clients to disconnect.
func (pgBouncer) stopSignal() os.Signal { return syscall.SIGTERM }

func (pgBouncer) account() string { return "postgres" }
