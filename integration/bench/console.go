package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
)

// site is a running "rabbitdelay serve" with many pending tasks.
type site struct {
	url     string // URL without a slash at its end
	client  *http.Client
	process *os.Process
	middle  string // due time of the task in the middle, Unix milliseconds
}

// openSite fills the task table with one task every 100 ms from tomorrow on, and serves the console.
func openSite(ctx context.Context, r *run, s *Scenario) (end func(context.Context) error, err error) {
	if err := postgres(ctx, r, s); err != nil {
		return nil, err
	}
	b, err := r.at(ctx, s, newest)
	if err != nil {
		return nil, err
	}
	const fill = `INSERT INTO rabbitdelay_tasks (id, queue, due_at, body, created_at, updated_at)
		SELECT 'task-' || lpad(i::text, 9, '0'), CASE WHEN i % 100 = 0 THEN 'seldom' ELSE 'often' END, $2::bigint + 86400000 + i::bigint * 100, '', $2::bigint, $2::bigint FROM generate_series(1, $1) i`
	now := time.Now()
	_, err = r.db.ExecContext(ctx, fill, r.o.Pending, now.UnixMilli())
	if err == nil {
		_, err = r.db.ExecContext(ctx, "ANALYZE rabbitdelay_tasks")
	}
	middle := now.Add(24*time.Hour + time.Duration(r.o.Pending)*50*time.Millisecond)
	r.site = &site{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: watchers}}, middle: strconv.FormatInt(middle.UnixMilli(), 10)}
	var stop func()
	if err == nil {
		stop, err = r.site.start(ctx, b.URL(), r.dbURL)
	}
	end = func(ctx context.Context) error {
		r.site.client.CloseIdleConnections()
		if stop != nil {
			stop()
		}
		return r.empty(ctx, "rabbitdelay_tasks")
	}
	if err != nil {
		return nil, joined(err, end(context.WithoutCancel(ctx)))
	}
	return end, nil
}

// start starts the process and waits until it answers.
func (s *site) start(ctx context.Context, brokerURL, databaseURL string) (stop func(), err error) {
	ports, err := loopback.Ports(1)
	if err != nil {
		return nil, err
	}
	running, interrupt := context.WithCancel(context.WithoutCancel(ctx))
	at := loopback.Address(ports[0])
	c, err := binary.Command(running, "serve", "--no-relay", "--url", brokerURL, "--db", databaseURL, "--listen", at, "--log-level", "error")
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		interrupt()
		return nil, err
	}
	s.url, s.process = "http://"+at, c.Process
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait()
	}()
	stop = func() {
		interrupt()
		<-ended
	}
	for deadline := time.Now().Add(30 * time.Second); s.get(ctx, "healthz", func(string) {}) != nil; {
		if time.Now().After(deadline) {
			stop()
			return nil, errors.New("rabbitdelay serve does not answer")
		}
		if err := wait.For(ctx, 50*time.Millisecond); err != nil {
			stop()
			return nil, err
		}
	}
	return stop, nil
}

// get reads the lines of a page until the end of the page, or until ctx is done.
func (s *site) get(ctx context.Context, path string, line func(string)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/"+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /%s: status %d", path, resp.StatusCode)
	}
	for lines := bufio.NewReaderSize(resp.Body, 1<<16); ; {
		text, err := lines.ReadString('\n')
		line(text)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// load measures n loads of a page, from the request to the last byte.
func load(n int, path string) work {
	return func(ctx context.Context, t *turn) error {
		var took []float64
		for i := range n + 3 {
			began := time.Now()
			if err := t.site.get(ctx, strings.ReplaceAll(path, "{middle}", t.site.middle), func(string) {}); err != nil {
				return err
			}
			if i >= 3 { // the first loads also open connections and create query plans
				took = append(took, 1000*time.Since(began).Seconds())
			}
		}
		t.row.AddPercentiles("ms", took, 0.5, 0.99)
		return nil
	}
}

// watchers is the number of browsers that watch the first page at the same time.
const watchers = 100

// watch measures the cost of browsers that watch the first page for the given duration.
func watch(long time.Duration) work {
	return func(ctx context.Context, t *turn) error {
		watching, stop := context.WithCancel(ctx)
		defer stop()
		var events, bytes atomic.Int64
		var all errgroup.Group
		var first sync.WaitGroup
		first.Add(watchers)
		for range watchers {
			all.Go(func() error {
				once := sync.OnceFunc(first.Done)
				defer once()
				err := t.site.get(watching, "live", func(line string) {
					bytes.Add(int64(len(line)))
					if line == "event: now\n" {
						events.Add(1)
						once()
					}
				})
				if watching.Err() != nil {
					return nil
				}
				return err
			})
		}
		first.Wait()
		look := func() (now [5]float64, err error) {
			var transactions float64 // finished transactions; a statement outside of a transaction counts as one
			err = t.db.QueryRowContext(ctx, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()").Scan(&transactions)
			return [5]float64{float64(time.Now().UnixMicro()) / 1e6, float64(events.Load()), float64(bytes.Load()) / 1024, processor(t.site.process.Pid), transactions}, err
		}
		before, err := look()
		if err == nil {
			err = wait.For(ctx, long)
		}
		after, aerr := look()
		stop()
		if err := errors.Join(err, aerr, all.Wait()); err != nil {
			return err
		}
		seconds := after[0] - before[0]
		for i, m := range [][2]string{{"events", "a second, all browsers"}, {"sent", "KiB/s, all browsers"}, {"processor", "of a core, the server"}, {"transactions", "a second, of the database"}} {
			t.row.Add(m[0], m[1], (after[i+1]-before[i+1])/seconds)
		}
		return nil
	}
}

// processor returns the CPU time of a process in seconds, with a precision of hundredths. It returns 0 on systems other
// than Linux.
func processor(pid int) (seconds float64) {
	content, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if _, after, ok := strings.Cut(string(content), ") "); ok {
		for _, ticks := range strings.Fields(after)[11:13] { // utime and stime
			n, _ := strconv.ParseFloat(ticks, 64)
			seconds += n / 100
		}
	}
	return seconds
}
