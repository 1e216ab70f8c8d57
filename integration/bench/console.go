package bench

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/lateness"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// watchers is how many browsers look at the first page at once.
const watchers = 100

// consolePages are what is loaded, by what they show.
var consolePages = []struct{ name, path string }{
	{"Now", ""}, {"Now, a day", "?from=%2B1h&to=%2B25h"}, {"Tasks", "tasks"}, {"Tasks of a queue", "tasks?queue=seldom"}, {"Tasks by a prefix of ids", "tasks?prefix=task-0000012"},
	{"Tasks due within an hour", "tasks?status=pending&from=%2B24h&to=%2B25h"}, {"Tasks, far down", "tasks?queue=often&status=pending&after=%d/task-"}, {"one task", "task?id=task-000000012"},
}

// console measures how long pages take beside many pending tasks, and what a hundred
// browsers cost that watch the first one.
func (r *run) console(ctx context.Context, s *Scenario) (err error) {
	db, err := r.database(ctx, s)
	if err != nil {
		return err
	}
	now := time.Now()
	defer func() {
		_, gone := db.ExecContext(context.WithoutCancel(ctx), "DELETE FROM rabbitdelay_tasks WHERE id LIKE 'task-%'")
		err = errors.Join(err, gone)
	}()
	// A task every 100 ms from tomorrow on.
	const fill = `INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, created_at, updated_at)
		SELECT 'task-' || lpad(i::text, 9, '0'), CASE WHEN i % 100 = 0 THEN 'seldom' ELSE 'often' END, $2::bigint + 86400000 + i::bigint * 100, '', $2::bigint, $2::bigint FROM generate_series(1, $1) i`
	if _, err := db.ExecContext(ctx, fill, r.o.Pending, now.UnixMilli()); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "ANALYZE rabbitdelay_tasks"); err != nil {
		return err
	}
	store, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		return err
	}
	c, err := console.New(console.Config{Store: store, DB: db, Look: r.looked})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	server := httptest.NewServer(c)
	defer server.Close()
	group := number(float64(r.o.Pending)) + " pending tasks"
	middle := now.Add(24*time.Hour + time.Duration(r.o.Pending)*50*time.Millisecond).UnixMilli()
	for _, p := range consolePages {
		path := p.path
		if strings.Contains(path, "%d/") {
			path = fmt.Sprintf(path, middle)
		}
		if err := r.load(ctx, server, path, s.find(group, p.name, false)); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return r.watched(ctx, server, db, s.find(fmt.Sprintf("%d browsers, %s", watchers, group), "the first page, live", false))
}

// looked is how the console looks at the benchmark's broker.
func (r *run) looked(context.Context) (src status.Source, err error) {
	src.Want.Prefix = topology.DefaultPrefix
	src.Broker.Dial = func(context.Context) (*amqp.Connection, error) { return amqp.Dial(r.main.URL()) }
	src.Broker.SkipClock = true
	return src, nil
}

// load times a page from the request to its last byte.
func (r *run) load(ctx context.Context, server *httptest.Server, path string, c *Case) error {
	n := 200
	if r.o.Quick {
		n = 20
	}
	took := make([]float64, 0, n)
	for i := range n + 3 {
		began := time.Now()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/"+path, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		if i >= 3 { // the first have no connections and no plans yet
			took = append(took, float64(time.Since(began))/float64(time.Millisecond))
		}
	}
	slices.Sort(took)
	c.add(metricP50, "ms", lateness.Percentile(took, 0.5))
	c.add(metricP99, "ms", lateness.Percentile(took, 0.99))
	return nil
}

// watched counts what watching costs for a while.
func (r *run) watched(ctx context.Context, server *httptest.Server, db *sql.DB, c *Case) error {
	long := time.Minute
	if r.o.Quick {
		long = 10 * time.Second
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var events, bytes atomic.Int64
	var all errgroup.Group
	var first sync.WaitGroup
	for range watchers {
		first.Add(1)
		all.Go(func() error {
			once := sync.OnceFunc(first.Done)
			defer once()
			req, err := http.NewRequestWithContext(watching, http.MethodGet, server.URL+"/live", http.NoBody)
			if err != nil {
				return err
			}
			resp, err := server.Client().Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			for lines := bufio.NewReaderSize(resp.Body, 1<<16); ; {
				line, err := lines.ReadString('\n')
				bytes.Add(int64(len(line)))
				if err != nil {
					if watching.Err() != nil {
						return nil
					}
					return err
				}
				if line == "event: now\n" {
					events.Add(1)
					once()
				}
			}
		})
	}
	first.Wait()
	before, err := statements(ctx, db)
	if err != nil {
		return errors.Join(err, all.Wait())
	}
	events.Store(0)
	bytes.Store(0)
	cpu, began := ownProcessor(), time.Now()
	select {
	case <-time.After(long):
	case <-ctx.Done():
	}
	seconds := time.Since(began).Seconds()
	spent := (ownProcessor() - cpu).Seconds()
	sent, size := events.Load(), bytes.Load()
	after, err := statements(ctx, db)
	stop()
	if err := errors.Join(err, all.Wait()); err != nil {
		return err
	}
	c.add("events", "a second, all browsers", float64(sent)/seconds)
	c.add("sent", "KiB/s, all browsers", float64(size)/1024/seconds)
	c.add("processor", "of a core, server and browsers' readers", spent/seconds)
	c.add("transactions", "a second, of the database", float64(after-before)/seconds)
	return nil
}

// statements is how many transactions the database has ended; outside of one, each
// statement is its own.
func statements(ctx context.Context, db *sql.DB) (n int64, err error) {
	err = db.QueryRowContext(ctx, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()").Scan(&n)
	return n, err
}
