package database

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

// envKind makes the test binary start a server of the given kind, print its directory and address, and wait to be
// killed.
const envKind = "RABBITDELAY_TEST_KIND"

func TestMain(m *testing.M) {
	if kind := os.Getenv(envKind); kind != "" {
		s, err := Start(context.Background(), Kind(kind), Options{})
		if err != nil {
			panic(err)
		}
		_ = json.NewEncoder(os.Stdout).Encode([]string{s.instance.dir, u(s.url).Host})
		select {}
	}
	code := tier.Run(m, tier.Plan{}, nil)
	if err := CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func skipIfAsked(t *testing.T) {
	t.Helper()
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
}

// skipWithout skips the test if a server of the given kind cannot be started on this machine.
func skipWithout(t *testing.T, kind Kind) {
	t.Helper()
	if kind != MySQL {
		return
	}
	if _, err := findMySQL(t.Context()); err != nil {
		t.Skipf("skipped: %v", err)
	}
}

func u(raw string) *url.URL {
	parsed, err := url.Parse(raw)
	if err != nil {
		panic(err)
	}
	return parsed
}

// store keeps one number in a SQL database or in Redis.
type store interface {
	put(t *testing.T, n int)
	get(t *testing.T) int
}

type sqlStore struct{ s *Server }

func (s sqlStore) open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open(s.s.Driver(), s.s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func (s sqlStore) put(t *testing.T, n int) {
	t.Helper()
	db := s.open(t)
	for _, statement := range []string{
		"CREATE TABLE IF NOT EXISTS number (n integer, at timestamp)",
		"DELETE FROM number",
		fmt.Sprintf("INSERT INTO number (n, at) VALUES (%d, CURRENT_TIMESTAMP)", n),
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("statement %s: %v", statement, err)
		}
	}
}

func (s sqlStore) get(t *testing.T) (n int) {
	t.Helper()
	var at time.Time // without parseTime, the driver mysql returns bytes
	if err := s.open(t).QueryRowContext(t.Context(), "SELECT n, at FROM number").Scan(&n, &at); err != nil {
		t.Fatal(err)
	}
	return n
}

type redisStore struct{ s *Server }

func (s redisStore) ask(t *testing.T, command string) string {
	t.Helper()
	conn, err := net.Dial("tcp", u(s.s.URL()).Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	password, _ := u(s.s.URL()).User.Password()
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\n%s\r\nQUIT\r\n", password, command); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for scanner := bufio.NewScanner(conn); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	return strings.Join(lines, " ")
}

func (s redisStore) put(t *testing.T, n int) {
	t.Helper()
	if got := s.ask(t, fmt.Sprintf("SET number %d", n)); got != "+OK +OK +OK" {
		t.Fatalf(`SET: got %s, want "+OK +OK +OK"`, got)
	}
}

func (s redisStore) get(t *testing.T) (n int) {
	t.Helper()
	got := s.ask(t, "GET number")
	if _, err := fmt.Sscanf(got, "+OK $1 %d +OK", &n); err != nil {
		t.Fatalf("GET: got %s, want a number", got)
	}
	return n
}

func TestLife(t *testing.T) {
	skipIfAsked(t)
	t.Setenv(EnvPostgreSQL, "")
	t.Setenv(EnvMariaDB, "")
	t.Setenv(EnvMySQL, "")
	for _, kind := range []Kind{PostgreSQL, MariaDB, MySQL, Redis} {
		for _, durable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/durable=%t", kind, durable), func(t *testing.T) {
				skipWithout(t, kind)
				ctx := t.Context()
				// Every account must be able to access the directory, so it is not one from t.TempDir.
				s, err := Start(ctx, kind, Options{Durable: durable})
				if err != nil {
					t.Fatal(err)
				}
				dir := s.instance.dir
				defer func() {
					if err := errors.Join(s.Close(), s.Close()); err != nil {
						t.Error(err)
					}
					if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
						t.Errorf("the directory after Close: got error %v, want os.ErrNotExist", err)
					}
					if err := s.Start(context.Background()); err == nil {
						t.Error("Start after Close: got no error")
					}
				}()
				var data store = sqlStore{s}
				if kind == Redis {
					data = redisStore{s}
				}
				if password, _ := u(s.URL()).User.Password(); password == "" || strings.Contains(s.RedactedURL(), password) {
					t.Errorf("got the redacted URL %s, want it without the password %q, which must not be empty", s.RedactedURL(), password)
				}
				before := s.URL()
				data.put(t, 1)
				if err := s.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := s.engine.ready(ctx, s.instance); err == nil {
					t.Error("the server answers after Kill, want an error")
				}
				if err := s.Start(ctx); err != nil {
					t.Fatal(err)
				}
				if n := data.get(t); n != 1 {
					t.Errorf("after Kill: the value is %d, want 1", n)
				}
				data.put(t, 2)
				if err := s.Restart(ctx); err != nil {
					t.Fatal(err)
				}
				if n := data.get(t); n != 2 {
					t.Errorf("after Restart: the value is %d, want 2", n)
				}
				if s.URL() != before {
					t.Errorf("the URL after a restart is %s, want %s as before", s.RedactedURL(), before)
				}
			})
		}
	}
}

// With its default persistence, Redis keeps its data if it is stopped, and loses changes since its last snapshot if it
// is killed.
func TestSnapshots(t *testing.T) {
	skipIfAsked(t)
	s, err := Start(t.Context(), Redis, Options{Snapshots: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	data := redisStore{s}
	data.put(t, 1)
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := data.get(t); n != 1 {
		t.Errorf("after Restart: the value is %d, want 1", n)
	}
	data.put(t, 2)
	before, err := s.ProcessID()
	if err != nil {
		t.Error(err)
	}
	if err := errors.Join(s.Kill(), s.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	if n := data.get(t); n != 1 {
		t.Errorf("after Kill: the value is %d, want the snapshot's 1", n)
	}
	if after, err := s.ProcessID(); err != nil || after == before {
		t.Errorf("ProcessID after Kill and Start = %d (error %[3]v), want another process than %[2]d", after, before, err)
	}
}

func TestPasswordIsNeeded(t *testing.T) {
	for _, kind := range []Kind{PostgreSQL, MariaDB, MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			s := Shared(t, kind)
			if s.engine == nil {
				t.Skipf("skipped: the environment specifies the server")
			}
			wrong := strings.Replace(s.DSN(), s.instance.password, "wrong", 1)
			db, err := sql.Open(s.Driver(), wrong)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.PingContext(t.Context()); err == nil {
				t.Error("connecting with a wrong password: got no error")
			}
		})
	}
}

// TestKilled checks that no trace of a server is left after the process that started it was killed.
func TestKilled(t *testing.T) {
	skipIfAsked(t)
	for _, kind := range []Kind{PostgreSQL, MariaDB, MySQL, Redis} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			skipWithout(t, kind)
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), envKind+"="+string(kind), EnvPostgreSQL+"=", EnvMariaDB+"=", EnvMySQL+"=")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var place []string
			err = json.NewDecoder(stdout).Decode(&place)
			killErr := cmd.Process.Kill()
			_ = cmd.Wait() // it was killed, so Wait returns an error
			if err := errors.Join(err, killErr); err != nil {
				t.Fatalf("the child process that started the database: %v: %s", err, stderr.String())
			}
			dir, address := place[0], place[1]
			deadline := time.After(servers.Patience)
			ticker := time.NewTicker(poll)
			defer ticker.Stop()
			for {
				found := left(dir, address)
				if len(found) == 0 {
					return
				}
				select {
				case <-deadline:
					t.Fatalf("got the remaining traces of the server %v, want none", found)
				case <-ticker.C:
				}
			}
		})
	}
}

// left returns the traces of a server: its directory, processes that use it, a listener on its port, or its container.
func left(dir, address string) []string {
	var found []string
	if _, err := os.Lstat(dir); err == nil {
		found = append(found, dir)
	}
	directories, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range directories {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, dir) {
			found = append(found, link)
		}
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		found = append(found, address, fmt.Sprint(conn.Close()))
	}
	if _, err := docker(context.Background(), "container", "inspect", filepath.Base(dir)); err == nil {
		found = append(found, "container "+filepath.Base(dir))
	}
	return found
}

// Clients of a PgBouncer in transaction mode share one connection to the server. In session mode, each client has a
// separate connection.
func TestPgBouncer(t *testing.T) {
	server := Shared(t, PostgreSQL)
	for mode, shared := range map[PoolMode]bool{PerTransaction: true, PerSession: false} {
		t.Run(string(mode), func(t *testing.T) {
			size := 2
			if shared {
				size = 1
			}
			s, err := StartPgBouncer(t.Context(), server, Pooling{Mode: mode, Size: size})
			if errors.Is(err, ErrNotInstalled) {
				t.Skipf("skipped: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			db := sqlStore{s}.open(t)
			var pids [2]int
			for i := range pids {
				conn, err := db.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() }) // fails if the pooler was stopped first and has closed the connection
				if err := conn.QueryRowContext(t.Context(), "SELECT pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pids[i]); err != nil {
					t.Fatal(err)
				}
			}
			if (pids[0] == pids[1]) != shared {
				t.Errorf("two clients are connected to the server processes %v: same process = %t, want %t", pids, !shared, shared)
			}
		})
	}
}

func TestEnvironmentWins(t *testing.T) {
	t.Setenv(EnvPostgreSQL, "postgres://a:sesame@127.0.0.1:1/b")
	t.Setenv(EnvMariaDB, "mysql://a:sesame@127.0.0.1:1/b?tls=false")
	t.Setenv(EnvMySQL, "mysql://a:sesame@127.0.0.1:2/b")
	for kind, dsn := range map[Kind]string{
		PostgreSQL: "postgres://a:sesame@127.0.0.1:1/b",
		MariaDB:    "a:sesame@tcp(127.0.0.1:1)/b?parseTime=true&tls=false",
		MySQL:      "a:sesame@tcp(127.0.0.1:2)/b?parseTime=true",
	} {
		s, err := Start(t.Context(), kind, Options{})
		if err != nil {
			t.Fatalf("%v: %v", kind, err)
		}
		if s.DSN() != dsn || strings.Contains(s.RedactedURL(), "sesame") {
			t.Errorf(`%s: got DSN = %s and RedactedURL = %s, want %s and a URL without "sesame"`, kind, s.DSN(), s.RedactedURL(), dsn)
		}
		for _, err := range []error{s.Kill(), s.Stop(t.Context()), s.Start(t.Context())} {
			if !errors.Is(err, ErrNotOurs) {
				t.Errorf("%s: got %v, want ErrNotOurs", kind, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

func TestNotInstalled(t *testing.T) {
	_, err := lookProgram("no-such-server", "no-such-package")
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "no-such-package") {
		t.Errorf(`got error %v, want ErrNotInstalled containing "no-such-package"`, err)
	}
	if _, err := Start(t.Context(), "Oracle", Options{}); err == nil || !strings.Contains(err.Error(), "Oracle") {
		t.Errorf(`an unknown kind: got error %v, want one containing "Oracle"`, err)
	}
}
