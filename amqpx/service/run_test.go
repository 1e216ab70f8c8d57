package service_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	logs "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/service"
	"github.com/rabbitdelay/rabbitdelay/config"
	_ "github.com/rabbitdelay/rabbitdelay/config/postgres"
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite"
)

func TestMain(m *testing.M) {
	os.Clearenv() // AMQP_URL and RABBITDELAY_* would change the configuration
	goleak.VerifyTestMain(m)
}

// fileOf writes a configuration file and returns its path.
func fileOf(t *testing.T, lines ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const atBroker = "broker: {url: 'amqp://guest:guest@amqptest:5672/'}"

func atDatabase(t *testing.T) string {
	t.Helper()
	return "database: {url: 'sqlite:" + filepath.Join(t.TempDir(), "shop.db") + "?_pragma=synchronous(off)'}"
}

// open opens a service that uses an in-memory broker.
func open(t *testing.T, srv *amqptest.Server, o service.Options, lines ...string) *service.Service {
	t.Helper()
	o.File = fileOf(t, append(lines, atBroker)...)
	o.Logger = amqpx.SlogLogger(slog.New(slog.NewTextHandler(t.Output(), nil)))
	o.Client = func(c *amqpx.Config) { c.Dial = srv.Dial }
	s, err := service.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// running runs a service in the background.
func running(ctx context.Context, s *service.Service, parts ...service.Part) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, parts...) }()
	return ended
}

// A configuration file is enough to run a service with messages, tasks and recurring tasks.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		s := open(t, srv, service.Options{VirtualTime: true, Migrate: true}, atDatabase(t),
			"schedules: [{name: nightly, every: 24h, queue: reports}]")
		if err := s.Health(); !errors.Is(err, schedule.ErrNotRunning) {
			t.Errorf("Health before Run: got %v, want schedule.ErrNotRunning", err)
		}
		var tasks, reports, texts atomic.Int64
		count := func(n *atomic.Int64) schedule.Func {
			return func(context.Context, *sql.Tx, *amqpx.Delivery) error { n.Add(1); return nil }
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := running(ctx, s,
			s.Consume("orders.expire", schedule.Handler(s.DB, count(&tasks))),
			s.Consume("reports", schedule.Handler(s.DB, count(&reports))),
			s.Consume("texts", func(context.Context, *amqpx.Delivery) error { texts.Add(1); return nil }))
		if err := s.Tasks.Schedule(ctx, schedule.NoTx, schedule.Task{
			ID: "order-1", Queue: "orders.expire", DeliverAt: time.Now().Add(30 * time.Minute),
		}); err != nil {
			t.Error(err)
		}
		if err := s.Client.Send(ctx, amqpx.Message{Queue: "texts", Delay: time.Minute}); err != nil {
			t.Error(err)
		}
		<-time.After(25 * time.Hour)
		synctest.Wait()
		if tasks.Load() != 1 || texts.Load() != 1 || reports.Load() != 1 {
			t.Errorf("handled messages: got %d tasks, %d texts and %d reports, want 1 of each kind", tasks.Load(), texts.Load(), reports.Load())
		}
		if err := s.Health(); err != nil {
			t.Errorf("Health during Run: got %v, want nil", err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: got %v, want nil", err)
		}
		if err := s.Health(); !errors.Is(err, service.ErrStopping) {
			t.Errorf("Health after Run: got %v, want service.ErrStopping", err)
		}
		if err := s.DB.PingContext(t.Context()); err == nil {
			t.Error("ping of the file's database after Run: got nil, want an error, because Run closes it")
		}
	})
}

// If one part fails permanently, Run stops the others and returns an error that names the part.
func TestRunEndsWithAPart(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(srv *amqptest.Server, s *service.Service) service.Part
		want    string
	}{
		"consumer": {func(srv *amqptest.Server, s *service.Service) service.Part {
			srv.Deny("guest", amqptest.PermissionRead, "secret")
			return s.Consume("secret", func(context.Context, *amqpx.Delivery) error { return nil })
		}, "consume secret: "},
		"relay": {func(_ *amqptest.Server, s *service.Service) service.Part {
			s.Tasks, _ = schedule.New(s.DB, nil, schedule.Config{}) // a store without a sender cannot relay
			return func(ctx context.Context) error { <-ctx.Done(); return nil }
		}, "relay: "},
		"part": {func(*amqptest.Server, *service.Service) service.Part {
			return func(context.Context) error { return errors.New("disk full") }
		}, "disk full"},
		"nil part": {func(*amqptest.Server, *service.Service) service.Part {
			return nil
		}, "invalid configuration: part 1 of Run is nil; expected a function"},
		"part that panics": {func(*amqptest.Server, *service.Service) service.Part {
			return func(context.Context) error { panic("disk full") }
		}, "part 1 of the service panicked: disk full"},
		"part that ends its goroutine": {func(*amqptest.Server, *service.Service) service.Part {
			return func(context.Context) error { runtime.Goexit(); return nil }
		}, "part 1 of the service ended its goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := amqptest.NewServer(amqptest.Options{})
				defer srv.Close()
				s := open(t, srv, service.Options{VirtualTime: true, Migrate: true}, atDatabase(t))
				ended := false
				err := s.Run(t.Context(), c.prepare(srv, s), func(ctx context.Context) error { <-ctx.Done(); ended = true; return nil },
					func(context.Context) error { return nil }) // a part with nothing left to do
				if err == nil || !strings.HasPrefix(err.Error(), c.want) || !ended {
					t.Errorf("Run: got %v, want an error with prefix %q; other part stopped: got %t, want true", err, c.want, ended)
				}
				if n := len(srv.Connections()); n != 0 {
					t.Errorf("after Run: got %d open connections, want 0", n)
				}
			})
		})
	}
}

// When the drain timeout has passed, a running handler is cancelled and its message returns to the queue.
func TestRunDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		s := open(t, srv, service.Options{VirtualTime: true, DrainTimeout: 5 * time.Second})
		ctx, stop := context.WithCancel(t.Context())
		ended := running(ctx, s, s.Consume("q", func(ctx context.Context, _ *amqpx.Delivery) error { <-ctx.Done(); return ctx.Err() }))
		if err := s.Client.Send(ctx, amqpx.Message{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stop()
		began := time.Now()
		if err := <-ended; !errors.Is(err, service.ErrCutOff) {
			t.Errorf("Run: got %v, want service.ErrCutOff", err)
		}
		if took := time.Since(began); took < 5*time.Second || took > 8*time.Second {
			t.Errorf("Run took %v to return after the cancellation, want 5s to 8s", took)
		}
		if q, _ := srv.Queue("q"); q.Ready != 1 {
			t.Errorf("queue q: got %d messages, want 1, because its handler was cancelled", q.Ready)
		}
	})
}

// Run returns even if a part ignores that its context is cancelled.
func TestRunAbandons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		s := open(t, srv, service.Options{VirtualTime: true, DrainTimeout: time.Second})
		ctx, stop := context.WithCancel(t.Context())
		release := make(chan struct{})
		ended := running(ctx, s, func(context.Context) error { <-release; return nil })
		stop()
		if err := <-ended; err == nil || !errors.Is(err, service.ErrCutOff) || !strings.Contains(err.Error(), "still run") {
			t.Errorf(`Run: got %v, want service.ErrCutOff with "still run" in its text`, err)
		}
		close(release)
	})
}

// After SIGTERM, a running handler may finish. A second SIGTERM cancels it.
func TestRunSignals(t *testing.T) {
	for _, signals := range []int{1, 2} {
		t.Run(fmt.Sprint(signals), func(t *testing.T) {
			srv := amqptest.NewServer(amqptest.Options{})
			defer srv.Close()
			s := open(t, srv, service.Options{DrainTimeout: time.Minute})
			began, finish := make(chan struct{}), make(chan struct{})
			ended := running(t.Context(), s, s.Consume("q", func(ctx context.Context, d *amqpx.Delivery) error {
				close(began)
				select {
				case <-finish:
					return s.Client.Send(ctx, amqpx.Message{Queue: "next"})
				case <-ctx.Done():
					return ctx.Err()
				}
			}))
			if err := s.Client.Send(t.Context(), amqpx.Message{Queue: "q"}); err != nil {
				t.Fatal(err)
			}
			<-began
			terminate(t)
			for s.Health() == nil || !errors.Is(s.Health(), service.ErrStopping) {
				<-time.After(time.Millisecond)
			}
			if signals == 1 {
				close(finish)
			} else {
				terminate(t)
			}
			err := <-ended
			next, _ := srv.Queue("next")
			again, _ := srv.Queue("q")
			if finished := signals == 1; (err == nil) != finished || (next.Ready == 1) != finished || (again.Ready == 0) != finished {
				t.Errorf("after %d signals: got the error %v, %d messages sent and %d back in the queue, want the handler to have finished: %t", signals, err, next.Ready, again.Ready, finished)
			}
		})
	}
}

func terminate(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// Open reports problems with the file, the database and the broker without revealing the password, and closes what it
// has opened.
func TestOpenErrors(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	gone := "database: {url: 'postgres://shop:hunter2@127.0.0.1:1/shop?connect_timeout=1'}"
	for name, c := range map[string]struct {
		file string
		o    service.Options
		want []string
		is   error
	}{
		"no file":  {file: "missing.yaml", want: []string{"missing.yaml"}},
		"wrong":    {file: fileOf(t, "delay: {strategy: fast}"), want: []string{"delay.strategy", "expected auto"}, is: config.ErrConfig},
		"nothing":  {want: []string{"broker"}, is: config.ErrNoBroker},
		"database": {file: fileOf(t, atBroker, gone), want: []string{"database: not ready in time"}},
		"folder":   {file: fileOf(t, atBroker, "database: {url: 'sqlite:"+t.TempDir()+"'}"), want: []string{"database: not ready in time", "expected a file, or a path"}},
		"other":    {file: fileOf(t, atBroker, "database: {url: 'sqlite:"+fileOf(t, strings.Repeat("no database ", 100))+"'}"), want: []string{"file is not a database", "expected an SQLite database"}},
		"tables":   {file: fileOf(t, atBroker, atDatabase(t)), want: []string{"database: ", "Options.Migrate"}, is: schedule.ErrNoTable},
		"driver":   {file: fileOf(t, atBroker, "database: {url: 'mysql://shop:hunter2@h/shop'}"), want: []string{"config/mysql"}, is: config.ErrNoDriver},
		"broker":   {file: fileOf(t, "broker: {url: 'amqp://shop:hunter2@127.0.0.1:1/'}"), want: []string{"open: ", "127.0.0.1:1"}},
		"drain":    {o: service.Options{DrainTimeout: -1}, want: []string{"DrainTimeout"}, is: config.ErrConfig},
		"unit":     {o: service.Options{DrainTimeout: 30}, want: []string{"DrainTimeout", "30*time.Second"}, is: config.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			c.o.File = c.file
			c.o.Logger = amqpx.SlogLogger(slog.New(slog.NewTextHandler(t.Output(), nil)))
			if name != "broker" {
				c.o.Client = func(cfg *amqpx.Config) { cfg.Dial = srv.Dial }
			}
			s, err := service.Open(ctx, c.o)
			if s != nil || err == nil || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("Open: got service %v and error %v, want no service and an error that wraps %v (any error if nil)", s, err, c.is)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Open: got the error %q, want it to contain %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Open: got the error %q, want it without the password", err)
			}
		})
	}
	if n := len(srv.Connections()); n != 0 {
		t.Errorf("after failed calls of Open: got %d open connections, want 0", n)
	}
}

// Close does not close a database that the program passed to Open.
func TestGivenDatabase(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{})
	defer srv.Close()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	horizon := time.Hour
	s := open(t, srv, service.Options{Database: db, Migrate: true, Tasks: func(c *schedule.Config) { c.Horizon = horizon }})
	if s.DB != db || s.Tasks == nil {
		t.Errorf("Open: got DB %p and Tasks %v, want DB %p and a store", s.DB, s.Tasks, db)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("ping of the caller's database after Close: got %v, want nil", err)
	}
}

// Run stores the rate limit that the file sets for a destination.
func TestRateLimitOfTheFile(t *testing.T) {
	srv := amqptest.Start(t, amqptest.Options{})
	s := open(t, srv, service.Options{Migrate: true}, atDatabase(t),
		"destinations: [{name: mail, queue: mail, rate_limit: {per_second: 5, burst: 2}}]")
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	ended := running(ctx, s, func(ctx context.Context) error {
		defer stop()
		for ctx.Err() == nil {
			list, err := s.Tasks.Destinations(ctx, schedule.NoTx)
			if err != nil || len(list) == 1 && list[0].PerSecond == 5 && list[0].Burst == 2 {
				return err
			}
			<-time.After(time.Millisecond)
		}
		return ctx.Err()
	})
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// ServeHTTP answers running requests before it returns, and fails if the address is in use.
func TestServeHTTP(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := service.ServeHTTP(addr, http.NotFoundHandler())(t.Context()); err == nil || !strings.Contains(err.Error(), addr) {
		t.Errorf("ServeHTTP on an address in use: got %v, want an error with %q", err, addr)
	}
	_ = l.Close()
	began, finish := make(chan struct{}), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- service.ServeHTTP(addr, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(began)
			<-finish
			_, _ = w.Write([]byte("done"))
		}))(ctx)
	}()
	answered := make(chan string, 1)
	go func() { answered <- get(addr) }()
	<-began
	stop()
	close(finish)
	if got := <-answered; got != "done" {
		t.Errorf(`the running request got the response %q, want "done"`, got)
	}
	if err := <-ended; err != nil {
		t.Errorf("ServeHTTP: got %v, want nil", err)
	}
}

// get repeats a request until the server answers, and returns the body.
func get(addr string) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	for {
		r, err := client.Get("http://" + addr)
		if err != nil {
			<-time.After(time.Millisecond)
			continue
		}
		text, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		return string(text)
	}
}

func TestProbe(t *testing.T) {
	var problem error
	p := service.Probe(func() error { return problem })
	ask := func(path string) (int, string) {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		return w.Code, w.Body.String()
	}
	if code, text := ask("/readyz"); code != http.StatusOK || text != `{"ok":true}` {
		t.Errorf(`GET /readyz: got %d %s, want 200 {"ok":true}`, code, text)
	}
	problem = errors.New("no broker")
	for text, err := range map[string]error{
		"starting": service.ErrStarting, "stopping": service.ErrStopping,
		"not ready; see the log for the reason": errors.New(`failed to connect to user=shop database=orders: 10.0.0.7:5432: refused`),
		"publish: disconnected; consumer: down; relay: failing": errors.Join(
			&amqpx.HealthError{Problems: []amqpx.HealthProblem{
				{Part: "publish", State: "disconnected", Reason: "dial tcp 10.0.0.8:5672: refused"}, {Part: "consumer orders.secret", State: "down", Reason: "gone"},
			}},
			&schedule.HealthError{Faults: []schedule.Fault{{Part: "relay", Err: errors.New("user=shop database=orders")}}},
		),
	} {
		problem = fmt.Errorf("x: %w", err)
		if errors.Is(err, service.ErrStarting) || errors.Is(err, service.ErrStopping) {
			problem = err
		}
		if code, got := ask("/readyz"); code != http.StatusServiceUnavailable || got != `{"ok":false,"problem":"`+text+`"}` {
			t.Errorf(`GET /readyz with the problem %v: got %d %s, want 503 with the problem %q`, problem, code, got, text)
		}
	}
	if code, _ := ask("/healthz"); code != http.StatusOK {
		t.Errorf("GET /healthz: got %d, want 200", code)
	}
}

// The log line that reports an opened service names its file, or says that no file is set.
func TestFirstLine(t *testing.T) {
	srv := amqptest.Start(t, amqptest.Options{})
	for name, file := range map[string]string{"none: neither Options.File nor RABBITDELAY_FILE is set": "", "shop.yaml": "shop.yaml"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("RABBITDELAY_FILE", "")
			t.Setenv("RABBITDELAY_BROKER_URL", "amqp://guest:guest@secret.example/")
			o := service.Options{Client: func(c *amqpx.Config) { c.Dial = srv.Dial }}
			if file != "" {
				o.File = fileOf(t, "destinations: [{name: mail, queue: mail}]")
			}
			core, seen := logs.New(zap.InfoLevel)
			o.Logger = zap.New(core)
			s, err := service.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close(t.Context())
			lines := seen.FilterMessage("service opened").All()
			if len(lines) != 1 {
				t.Fatalf(`the log has %v, want one line "service opened"`, seen.All())
			}
			fields := lines[0].ContextMap()
			if got, _ := fields["file"].(string); got != name && (file == "" || got != o.File) {
				t.Errorf(`log field "file": got %q, want %q`, got, cmp.Or(o.File, name))
			}
			if fields["broker"] != "RabbitMQ 4.3.0 at secret.example:5672" || fields["strategy"] != "bucket" || fields["database"] != "none" {
				t.Errorf(`log fields: got %v, want broker = "RabbitMQ 4.3.0 at secret.example:5672", strategy = "bucket" and database = "none"`,
					fields)
			}
		})
	}
}
