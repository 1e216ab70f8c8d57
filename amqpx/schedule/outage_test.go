package schedule

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// failingDB is a database whose statements fail with err while it is set, as if its server were down.
type failingDB struct {
	*sql.DB

	err atomic.Pointer[error]
}

var errRefused error = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

func (f *failingDB) fail() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *failingDB) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.DB.ExecContext(ctx, query, args...)
}

func (f *failingDB) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.DB.QueryContext(ctx, query, args...)
}

func (f *failingDB) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.DB.BeginTx(ctx, opts)
}

// An outage of the handlers' database uses up no attempts, however long it is. Tasks that become due during the outage
// are handled within seconds of its end.
func TestHandlersWaitForTheDatabase(t *testing.T) {
	const (
		outage = 3 * time.Minute
		tasks  = 12
	)
	for name, tc := range map[string]struct {
		lease   bool
		options []HandlerOption
		consume []amqpx.ConsumeOption
	}{
		"alone":    {},
		"group":    {options: []HandlerOption{WithGroup(10)}},
		"lease":    {lease: true},
		"deadline": {consume: []amqpx.ConsumeOption{amqpx.WithMiddleware(amqpx.Timeout(20 * time.Second))}},
	} {
		t.Run(name, func(t *testing.T) {
			onSite(t, Config{}, func(t *testing.T, s *site) {
				db := &failingDB{DB: s.db}
				db.err.Store(&errRefused)
				handler := Handler(db, s.noted(nil), append(tc.options, WithDialect(SQLite))...)
				if tc.lease {
					handler = LeaseHandler(db, func(ctx context.Context, d *amqpx.Delivery, _ string) (Func, error) {
						return nil, s.noted(nil)(ctx, nil, d)
					}, append(tc.options, WithDialect(SQLite))...)
				}
				stop := s.consume("q", handler, tc.consume...)
				defer stop()
				for i := range tasks {
					check(t, s.Schedule(t.Context(), NoTx, Task{ID: fmt.Sprint(i), Queue: "q", DeliverAt: time.Now().Add(time.Second)}))
				}
				after(10 * time.Second)
				health := s.client.Health()
				if health == nil || !strings.Contains(health.Error(), "consumer q: blocked since") || !errors.Is(health, syscall.ECONNREFUSED) {
					t.Errorf(`Health during the outage: got %v, want syscall.ECONNREFUSED with "consumer q: blocked since"`, health)
				}
				after(outage)
				db.err.Store(nil)
				up := time.Since(s.began)
				after(5 * time.Second)
				check(t, s.client.Health())
				for i := range tasks {
					task, err := s.Get(t.Context(), NoTx, fmt.Sprint(i))
					check(t, err)
					if task.Status != StatusDone || task.Attempts != 0 {
						t.Errorf("task %d: got %s after %d failed attempts with the error %q, want %s after 0", i, task.Status, task.Attempts, task.LastError, StatusDone)
					}
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(s.effects) != tasks {
					t.Errorf("after the outage: got %d effects, want %d", len(s.effects), tasks)
				}
				for _, e := range s.effects {
					if late := e.at - up; late > 3*time.Second {
						t.Errorf("task %s took effect %v after the end of the outage, want at most 3s", e.id, late)
					}
				}
				if q, _ := s.srv.Queue("q.dead"); len(q.Messages) > 0 {
					t.Errorf("queue q.dead has %d messages, want 0", len(q.Messages))
				}
			})
		})
	}
}

// If the database fails while work is done under a lease, the handler waits until it can store the result, and does not
// repeat the work.
func TestResultOfALeaseWaitsForTheDatabase(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		db := &failingDB{DB: s.db}
		work := s.noted(func(*amqpx.Delivery) error { db.err.Store(&errRefused); return nil })
		defer s.consume("q", LeaseHandler(db, func(ctx context.Context, d *amqpx.Delivery, _ string) (Func, error) {
			return nil, work(ctx, nil, d)
		}, WithDialect(SQLite)))()
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(time.Second)}))
		after(30 * time.Second)
		db.err.Store(nil)
		after(5 * time.Second)
		if task, err := s.Get(t.Context(), NoTx, "a"); err != nil || task.Status != StatusDone || task.Attempts != 0 {
			t.Errorf("Get: got %+v, error %v, want Status = %v, Attempts = 0 and no error", task, err, StatusDone)
		}
		s.wantEffects("a", "q 2s")
	})
}

// Waiting for the database does not delay a shutdown.
func TestShutdownDuringAnOutage(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		db := &failingDB{DB: s.db}
		db.err.Store(&errRefused)
		handler := Handler(db, s.noted(nil), WithDialect(SQLite))
		stop := s.consume("q", handler)
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now()}))
		after(5 * time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the consumer stopped after %v, want at most 2s", took)
		}
		db.err.Store(nil)
		s.consume("q", handler)
		after(5 * time.Second)
		if task, err := s.Get(t.Context(), NoTx, "a"); err != nil || task.Status != StatusDone || task.Attempts != 0 {
			t.Errorf("Get: got %+v, error %v, want Status = %v, Attempts = 0 and no error", task, err, StatusDone)
		}
	})
}

// The handler's own errors still count as attempts, even if they look like an unavailable database.
func TestEffectWithoutItsServer(t *testing.T) {
	onSite(t, Config{}, func(t *testing.T, s *site) {
		defer s.consume("q", Handler(s.db, s.noted(func(*amqpx.Delivery) error { return errRefused })))()
		check(t, s.Schedule(t.Context(), NoTx, Task{ID: "a", Queue: "q", DeliverAt: time.Now()}))
		after(time.Minute)
		if task, err := s.Get(t.Context(), NoTx, "a"); err != nil || task.Status != StatusFailed || task.Attempts != 5 {
			t.Errorf("Get: got %+v, error %v, want Status = %v, Attempts = 5 and no error", task, err, StatusFailed)
		}
	})
}

// An outage of the relay's database is logged when it starts, once a minute and when it ends, rather than at every
// poll.
func TestOutageFloodsNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		store, own := openStore(t, nil, Config{Logger: zap.New(core), VirtualTime: true})
		defer func() { _ = own.Close() }()
		report := store.reports("relay")
		store.faults.begin()
		for i := range 10 * 60 {
			report(fmt.Errorf("attempt %d: %w", i, errRefused))
			<-time.After(time.Second)
		}
		report(nil)
		if failed, works := logs.FilterMessage("schedule: relay failed; retrying").Len(), logs.FilterMessage("schedule: relay works again").Len(); failed != 10 || works != 1 {
			t.Errorf("after ten minutes of failures: got %d log lines about the failure and %d about its end, want 10 and 1", failed, works)
		}
		report(errors.New("another error"))
		report(fmt.Errorf("select: %w", ErrDenied))
		if n := logs.FilterMessage("schedule: relay failed; retrying").Len(); n != 12 {
			t.Errorf("after two other errors: got %d log lines about failures, want 12: one more for each new kind of error", n)
		}
	})
}
