package faults_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
)

var (
	soak     = flag.Duration("soak", 0, "how long TestSoak runs; 0: it is skipped")
	soakRate = flag.Float64("soak-rate", 50, "messages per second of TestSoak; a fifth as many tasks beside them")
	curves   = flag.String("curves", "", "file to write TestSoak's picture to, an SVG")
)

// TestSoak sends at a steady rate, without faults, and looks at what may grow: this
// process, the broker and the database's tables. After a warm-up nothing may.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("skipped: -soak says how long it runs")
	}
	s := startSoak(t)
	ctx, cancel := context.WithTimeout(t.Context(), *soak)
	defer cancel()
	var working sync.WaitGroup
	working.Go(func() { s.produce(ctx) })
	for began, tick := time.Now(), time.NewTicker(*soak/240); ; {
		select {
		case <-ctx.Done():
		case <-tick.C:
			s.sample(t, time.Since(began))
			continue
		}
		tick.Stop()
		break
	}
	working.Wait()
	s.settle(t)
	for i, name := range soakCurves {
		early, late := s.level(i, 1), s.level(i, 3)
		t.Logf("%-22s %9.1f in the second quarter, %9.1f in the last", name, early, late)
		if late > early*1.15+1 {
			t.Errorf("%s grew from %.1f to %.1f", name, early, late)
		}
	}
	t.Logf("%d messages and %d tasks with %d effects, %d early", s.sent.Load(), s.scheduled.Load(), s.effects.Load(), s.early.Load())
	if s.early.Load() > 0 {
		t.Errorf("%d effects were early", s.early.Load())
	}
	if *curves != "" {
		mustDo(t, os.WriteFile(*curves, s.picture(), 0o600))
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// soakCurves are what a sample has.
var soakCurves = []string{"goroutines", "heap, MiB", "open files", "broker's memory, MiB", "broker's processes", "rows, thousands"}

type soakWork struct {
	b      *broker.Broker
	db     *sql.DB
	client *amqpx.Client
	store  *schedule.Store

	sent, scheduled, cancelled, effects, early atomic.Int64

	at     []time.Duration
	values [][]float64 // of each curve
}

func startSoak(t *testing.T) *soakWork {
	s := &soakWork{values: make([][]float64, len(soakCurves))}
	var err error
	s.b, err = broker.Start(t.Context(), broker.Options{Version: *version, Management: true})
	mustDo(t, err)
	t.Cleanup(func() { _ = s.b.Close() })
	server, err := database.Start(t.Context(), database.Kind(*databases), database.Options{})
	mustDo(t, err)
	t.Cleanup(func() { _ = server.Close() })
	s.db, err = sql.Open(server.Driver(), server.DSN())
	mustDo(t, err)
	t.Cleanup(func() { _ = s.db.Close() })
	s.client, err = amqpx.Open(t.Context(), amqpx.Config{URL: s.b.URL()})
	mustDo(t, err)
	t.Cleanup(func() { _ = s.client.Close(context.Background()) })
	mustDo(t, idempotency.Migrate(t.Context(), s.db))
	mustDo(t, schedule.Migrate(t.Context(), s.db))
	const kept = 2 * time.Minute
	s.store, err = schedule.New(s.db, s.client, schedule.Config{Horizon: kept, Retention: schedule.Retention{Keep: kept, Every: 15 * time.Second}})
	mustDo(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { _ = s.store.Run(ctx) })
	running.Go(func() {
		_ = idempotency.RunPurge(ctx, s.db, idempotency.Retention{Keep: kept, Every: 15 * time.Second}, nil)
	})
	effect := func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
		s.effects.Add(1)
		if time.Now().Before(d.DueAt) {
			s.early.Add(1)
		}
		return nil
	}
	for queue, h := range map[string]amqpx.Handler{
		"soak.messages": idempotency.Handler(s.db, effect),
		"soak.tasks":    schedule.Handler(s.db, effect),
	} {
		running.Go(func() { _ = s.client.Consume(ctx, queue, h) })
	}
	return s
}

// produce sends and schedules, to be due within a minute. A third of the tasks is
// cancelled, a third moved.
func (s *soakWork) produce(ctx context.Context) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / *soakRate))
	defer tick.Stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		delay := time.Duration(rand.Int64N(int64(time.Minute)))
		sending.Go(func() {
			if s.client.Send(context.WithoutCancel(ctx), amqpx.Message{Queue: "soak.messages", Delay: delay, Body: make([]byte, 200)}) == nil {
				s.sent.Add(1)
			}
		})
		if n%5 == 0 {
			sending.Go(func() { s.task(context.WithoutCancel(ctx), n/5, delay+10*time.Second) })
		}
	}
}

func (s *soakWork) task(ctx context.Context, n int, delay time.Duration) {
	id := fmt.Sprintf("soak-%d", n)
	if s.store.Schedule(ctx, schedule.NoTx, schedule.Task{ID: id, Queue: "soak.tasks", DeliverAt: time.Now().Add(delay)}) != nil {
		return
	}
	s.scheduled.Add(1)
	switch n % 3 {
	case 1:
		if s.store.Cancel(ctx, schedule.NoTx, id) == nil {
			s.cancelled.Add(1)
		}
	case 2:
		_ = s.store.Reschedule(ctx, schedule.NoTx, id, time.Now().Add(delay/2))
	}
}

func (s *soakWork) sample(t *testing.T, at time.Duration) {
	runtime.GC()
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	files, _ := filepath.Glob("/proc/self/fd/*")
	var node []struct {
		Memory    float64 `json:"mem_used"`
		Processes float64 `json:"proc_used"`
	}
	client := http.Client{Timeout: 30 * time.Second}
	defer client.CloseIdleConnections()
	r, err := client.Get(s.b.ManagementURL() + "/api/nodes")
	if err == nil {
		err = json.NewDecoder(r.Body).Decode(&node)
		_ = r.Body.Close()
	}
	rows := 0
	if err == nil {
		err = s.db.QueryRowContext(t.Context(), "SELECT (SELECT count(*) FROM rabbitdelay_tasks) + (SELECT count(*) FROM rabbitdelay_processed)").Scan(&rows)
	}
	if err != nil || len(node) == 0 {
		t.Logf("%v: no sample: %v", at, err)
		return
	}
	const mib = 1 << 20
	s.at = append(s.at, at)
	for i, v := range []float64{float64(runtime.NumGoroutine()), float64(heap.HeapAlloc) / mib, float64(len(files)), node[0].Memory / mib, node[0].Processes, float64(rows) / 1000} {
		s.values[i] = append(s.values[i], v)
	}
}

// settle waits for the last effects.
func (s *soakWork) settle(t *testing.T) {
	want := s.sent.Load() + s.scheduled.Load() - s.cancelled.Load()
	for deadline := time.Now().Add(10 * time.Minute); s.effects.Load() < want; <-time.After(time.Second) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d effects", s.effects.Load(), want)
		}
	}
	if n := s.effects.Load(); n > want {
		t.Errorf("%d effects, %d expected", n, want)
	}
}

// level is the median of a curve in one quarter of the run.
func (s *soakWork) level(curve, quarter int) float64 {
	v := s.values[curve]
	part := slices.Sorted(slices.Values(v[len(v)*quarter/4 : len(v)*(quarter+1)/4]))
	return part[len(part)/2]
}

// picture draws the curves, each from 0 to its most.
func (s *soakWork) picture() []byte {
	const width, height = 760, 90
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13"><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", width, height*len(soakCurves)+30)
	for i, name := range soakCurves {
		top, most := float64(i*height+24), slices.Max(s.values[i])
		fmt.Fprintf(&b, `<text x="10" y="%.0f">%s, at most %.4g</text><path d="M10 %.0f H%d" stroke="#ccc"/><polyline fill="none" stroke="#1a6fb5" stroke-width="1.5" points="`, top-6, name, most, top+height-30, width-10)
		for j, v := range s.values[i] {
			x := 10 + float64(width-20)*s.at[j].Seconds()/soak.Seconds()
			fmt.Fprintf(&b, "%.1f,%.1f ", x, top+(height-30)*(1-v/math.Max(most, 1e-9)))
		}
		b.WriteString(`"/>` + "\n")
	}
	fmt.Fprintf(&b, `<text x="10" y="%d">from the start to %v, at %g messages and %g tasks a second</text></svg>`+"\n", height*len(soakCurves)+20, *soak, *soakRate, *soakRate/5)
	return []byte(b.String())
}
