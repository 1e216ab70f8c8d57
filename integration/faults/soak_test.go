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
	"strconv"
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
	soak     = flag.Duration("soak", 0, "how long TestSoak runs; 0: skip it")
	soakRate = flag.Float64("soak-rate", 50, "messages per second in TestSoak, in addition to a fifth as many tasks")
	curves   = flag.String("curves", "", "file for TestSoak's SVG picture")
)

// TestSoak sends at a steady rate without faults, and samples the sizes of this process, of the broker and of the
// database's tables. None of them may grow after a warm-up. The broker's memory takes more than half an hour to level
// off, so runs of less than two hours may fail.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("skipped: set the duration with -soak")
	}
	s := startSoak(t)
	ctx, cancel := context.WithTimeout(t.Context(), *soak)
	defer cancel()
	var working sync.WaitGroup
	working.Go(func() { s.produce(ctx, t) })
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
	if len(s.at) < 8 {
		t.Fatalf("got %d samples, want at least 8 to compare quarters of the run", len(s.at))
	}
	for i, name := range soakCurves {
		early, late := s.level(i, 1), s.level(i, 3)
		t.Logf("%-22s %9.1f in the second quarter, %9.1f in the last", name, early, late)
		if late > early*1.15+1 {
			t.Errorf("%s grew from %.1f to %.1f, want at most %.1f", name, early, late, early*1.15+1)
		}
	}
	s.judge(t)
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

// soakCurves lists the names of a sample's values.
var soakCurves = []string{"goroutines", "heap, MiB", "open files", "broker's memory, MiB", "broker's processes", "rows, thousands"}

// works has the wanted and actual effects of messages or tasks, indexed by their number. Its size is constant.
type works struct {
	wanted  []atomic.Bool // whether exactly one effect is wanted, rather than none because the item was cancelled or not sent
	effects []atomic.Int32
}

func newWorks(rate float64) works {
	n := int(rate*soak.Seconds()) + 1000
	return works{make([]atomic.Bool, n), make([]atomic.Int32, n)}
}

// count returns the numbers of expected effects, of missing effects, and of items with too many effects.
func (w *works) count() (wanted, missing, surplus int) {
	for i := range w.wanted {
		want, got := 0, int(w.effects[i].Load())
		if w.wanted[i].Load() {
			want = 1
		}
		wanted, missing, surplus = wanted+want, missing+max(want-got, 0), surplus+max(got-want, 0)
	}
	return wanted, missing, surplus
}

type soakWork struct {
	b      *broker.Broker
	db     *sql.DB
	client *amqpx.Client
	store  *schedule.Store

	messages, tasks works
	failed, early   atomic.Int64

	at     []time.Duration
	values [][]float64 // the values of each curve
}

func startSoak(t *testing.T) *soakWork {
	s := &soakWork{values: make([][]float64, len(soakCurves)), messages: newWorks(*soakRate), tasks: newWorks(*soakRate / 5)}
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
	for queue, h := range map[string]amqpx.Handler{
		soakMessages: idempotency.Handler(s.db, s.effect(&s.messages)),
		soakTasks:    schedule.Handler(s.db, s.effect(&s.tasks)),
	} {
		running.Go(func() { _ = s.client.Consume(ctx, queue, h) })
	}
	return s
}

const soakMessages, soakTasks = "soak.messages", "soak.tasks"

// effect returns a handler that counts effects by the number in the message's id.
func (s *soakWork) effect(w *works) func(context.Context, *sql.Tx, *amqpx.Delivery) error {
	return func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
		if time.Now().Before(d.DueAt) {
			s.early.Add(1)
		}
		n, err := strconv.Atoi(d.ID)
		if err != nil {
			return amqpx.Reject(err)
		}
		w.effects[n].Add(1)
		return nil
	}
}

// produce sends messages and schedules tasks that are due within a minute. It cancels a third of the tasks, and
// reschedules another third.
func (s *soakWork) produce(ctx context.Context, t *testing.T) {
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
			err := s.client.Send(context.WithoutCancel(ctx), amqpx.Message{ID: strconv.Itoa(n), Queue: soakMessages, Delay: delay, Body: make([]byte, 200)})
			s.expect(t, &s.messages, n, true, err)
		})
		if n%5 == 0 {
			sending.Go(func() { s.task(context.WithoutCancel(ctx), t, n/5, delay+10*time.Second) })
		}
	}
}

// expect records whether an effect is wanted, unless the outcome is unknown.
func (s *soakWork) expect(t *testing.T, w *works, n int, wanted bool, err error) {
	if err != nil {
		s.failed.Add(1)
		t.Logf("%d: %v", n, err)
	}
	w.wanted[n].Store(wanted)
}

func (s *soakWork) task(ctx context.Context, t *testing.T, n int, delay time.Duration) {
	id := strconv.Itoa(n)
	err := s.store.Schedule(ctx, schedule.NoTx, schedule.Task{ID: id, Queue: soakTasks, DeliverAt: time.Now().Add(delay)})
	switch {
	case err != nil:
	case n%3 == 1:
		err = s.store.Cancel(ctx, schedule.NoTx, id)
	case n%3 == 2:
		err = s.store.Reschedule(ctx, schedule.NoTx, id, time.Now().Add(delay/2))
	}
	s.expect(t, &s.tasks, n, n%3 != 1, err)
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
	for i, v := range []float64{
		float64(runtime.NumGoroutine()), float64(heap.HeapAlloc) / mib, float64(len(files)), node[0].Memory / mib,
		node[0].Processes, float64(rows) / 1000,
	} {
		s.values[i] = append(s.values[i], v)
	}
}

// settle waits for the last effects, and then for a while for surplus effects.
func (s *soakWork) settle(t *testing.T) {
	for deadline := time.Now().Add(10 * time.Minute); ; <-time.After(time.Second) {
		_, messages, _ := s.messages.count()
		_, tasks, _ := s.tasks.count()
		if messages+tasks == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("after 10 minutes, %d messages and %d tasks have had no effect, want 0 of both", messages, tasks)
			break
		}
	}
	<-time.After(90 * time.Second) // longer than any wait
	for _, queue := range []string{soakMessages, soakTasks, soakMessages + ".dead", soakTasks + ".dead"} {
		if info, err := s.client.QueueInfo(t.Context(), queue); err != nil || info.Ready > 0 {
			t.Errorf("queue %s at the end: got %+v, error %v, want no error and Ready = 0", queue, info, err)
		}
	}
}

// judge fails the test if a message or a task was lost, early or handled twice.
func (s *soakWork) judge(t *testing.T) {
	for name, w := range map[string]*works{"messages": &s.messages, "tasks": &s.tasks} {
		wanted, missing, surplus := w.count()
		t.Logf("%d %s were due; %d effects are missing, and %d items had too many", wanted, name, missing, surplus)
		if wanted == 0 || missing+surplus > 0 {
			t.Errorf("%s: got %d wanted effects, %d missing and %d items with too many, want more than 0, 0 and 0", name, wanted, missing, surplus)
		}
	}
	if early, failed := s.early.Load(), s.failed.Load(); early+failed > 0 {
		t.Errorf("%d effects were early and %d calls failed, want 0 and 0", early, failed)
	}
}

// level returns the median of a curve in one quarter of the run.
func (s *soakWork) level(curve, quarter int) float64 {
	v := s.values[curve]
	part := slices.Sorted(slices.Values(v[len(v)*quarter/4 : len(v)*(quarter+1)/4]))
	return part[len(part)/2]
}

// picture draws the curves as an SVG, each scaled to its maximum.
func (s *soakWork) picture() []byte {
	const width, height = 760, 90
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13"><rect width="100%%" height="100%%" fill="#fff"/>`+"\n",
		width, height*len(soakCurves)+30)
	for i, name := range soakCurves {
		top, most := float64(i*height+24), slices.Max(s.values[i])
		fmt.Fprintf(&b,
			`<text x="10" y="%.0f">%s, at most %.4g</text><path d="M10 %.0f H%d" stroke="#ccc"/><polyline fill="none" stroke="#1a6fb5" stroke-width="1.5" points="`,
			top-6, name, most, top+height-30, width-10)
		for j, v := range s.values[i] {
			x := 10 + float64(width-20)*s.at[j].Seconds()/soak.Seconds()
			fmt.Fprintf(&b, "%.1f,%.1f ", x, top+(height-30)*(1-v/math.Max(most, 1e-9)))
		}
		b.WriteString(`"/>` + "\n")
	}
	fmt.Fprintf(&b, `<text x="10" y="%d">from the start to %v, at %g messages and %g tasks a second</text></svg>`+"\n",
		height*len(soakCurves)+20, *soak, *soakRate, *soakRate/5)
	return []byte(b.String())
}
