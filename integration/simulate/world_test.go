package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// recurring is the name of the recurring task, if the scenario has one.
const recurring = "r"

// world is the simulated system that runs a scenario, and the history of the run.
type world struct {
	sc     *scenario
	srv    *amqptest.Server
	db     *database
	epoch  time.Time
	rest   sync.WaitGroup // goroutines of killed processes
	clocks []atomic.Int64 // how far the processes' clocks are ahead, in nanoseconds

	mu       sync.Mutex
	procs    []*process // nil while one is down
	seq      int64
	runs     map[int64]*run
	tries    map[string]int // the number of handler runs by queue and id
	events   []*event
	requeues []*event
	gates    []*event // calls that paused and resumed destinations
	slots    map[slot]bool
	keys     map[string]string // idempotency keys of leased work
	changed  map[int]bool      // processes that use the next layout
	faulty   time.Time         // when the last fault ended
	backs    map[int]time.Time // by step, when the consumers that it stopped started again
	first    time.Time         // first occurrence of the recurring task
	withdrew *event            // the pause that withdrew it
	wrong    []string
	trace    []string
}

// event is an operation. It takes effect between its call and its return, unless err means that it had no effect.
type event struct {
	what      string
	id        string
	call, ret int64
	at, back  time.Time
	due       time.Time
	by        time.Duration
	asked     time.Time // for a unique key: due time, MaxWait and Cooldown
	wait      time.Duration
	cool      time.Duration
	payload   string
	err       error
	maybe     bool // it is unknown whether it took effect
}

// run is a run of a handler's function.
type run struct {
	call, ret int64
	at, end   time.Time // end is zero if the process was killed
	id, queue string
	version   int64
	attempt   int
	snoozed   int
	payload   string
	took      bool // a plain handler has had its effect
}

// slot is the arrival time that a rate limit has granted to a sent task.
type slot struct {
	id      string
	version int64
	due     int64 // ms
}

// execute runs a scenario in a synctest bubble, checks its history and returns the world.
func execute(t *testing.T, sc *scenario) (w *world) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w = &world{
			sc: sc, epoch: time.Now(), runs: map[int64]*run{}, tries: map[string]int{}, slots: map[slot]bool{},
			keys: map[string]string{}, changed: map[int]bool{}, backs: map[int]time.Time{},
		}
		heartbeat := time.Duration(0)
		if sc.has("stall") {
			heartbeat = 10 * time.Second
		}
		w.srv = amqptest.NewServer(amqptest.Options{Version: sc.Version, Latency: sc.Latency, ClockAhead: sc.Ahead, Heartbeat: heartbeat})
		defer w.srv.Close()
		w.clocks = make([]atomic.Int64, sc.processes())
		for n, ahead := range sc.Clocks {
			w.clocks[n].Store(int64(ahead))
		}
		var err error
		if w.db, err = newDatabase(sc.DBTakes, sc.Seed); err != nil {
			t.Fatal(err)
		}
		if err := w.prepare(); err != nil {
			t.Fatal(err)
		}
		w.play()
		w.settle()
		w.check()
		w.shutDown()
	})
	return w
}

// prepare creates the tables, the exchanges and the processes.
func (w *world) prepare() error {
	db, _ := w.db.open()
	defer func() { _ = db.Close() }()
	ctx := context.Background()
	if err := errors.Join(schedule.Migrate(ctx, db), idempotency.Migrate(ctx, db)); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE effects (run INTEGER PRIMARY KEY)"); err != nil {
		return err
	}
	if err := w.declareOwn(); err != nil {
		return err
	}
	for n := range w.sc.processes() {
		p, err := w.start(n)
		if err != nil {
			return err
		}
		w.procs = append(w.procs, p)
	}
	var t topology.Topology
	for _, name := range []string{messages, tasks} {
		t.Exchanges = append(t.Exchanges, topology.Exchange{Name: name, Kind: "fanout"})
		for _, q := range subscribers[name] {
			t.Queues = append(t.Queues, topology.Destination{Queue: q}.Queues(topology.Quorum)...)
			t.Bindings = append(t.Bindings, topology.Binding{Exchange: name, Queue: q})
		}
	}
	if err := w.procs[0].client.Apply(ctx, t); err != nil {
		return err
	}
	if w.sc.RateLimit {
		if err := w.procs[0].store.SetRateLimit(ctx, schedule.NoTx, schedule.RateLimit{Queue: taskQueue, PerSecond: perSecond, Burst: 1}); err != nil {
			return err
		}
	}
	if w.sc.Every == 0 {
		return nil
	}
	w.first = w.epoch.Add(10 * time.Minute)
	r := schedule.Recurring{Name: recurring, Every: w.sc.Every, Start: w.toDB(w.first), Misfire: w.sc.Misfire, Task: w.task(recurring, taskQueue, recurring)}
	return w.procs[0].store.Recurring().Add(ctx, schedule.NoTx, r)
}

// dbNow returns the time of the database's clock. The history contains true times, which toDB and fromDB convert to and
// from that clock.
func (w *world) dbNow() time.Time { return w.toDB(time.Now()) }

func (w *world) toDB(t time.Time) time.Time   { return t.Add(w.sc.DBAhead) }
func (w *world) fromDB(t time.Time) time.Time { return t.Add(-w.sc.DBAhead) }

// declareOwn declares the user's own queue, if the scenario has one.
func (w *world) declareOwn() error {
	if !w.sc.Own {
		return nil
	}
	c, err := w.srv.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ch, err := c.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(plainQueue, true, false, false, false, map[string]any{"x-queue-type": "quorum"})
	return err
}

// play runs each step at its time.
func (w *world) play() {
	var steps sync.WaitGroup
	for n, s := range w.sc.Steps {
		steps.Go(func() {
			<-after(s.At)
			w.logf("%v", s)
			if s.What == "change layout" {
				w.changeLayout(s.For)
			} else if s.isFault() {
				w.disturb(s)
				w.mu.Lock()
				w.faulty = later(w.faulty, time.Now())
				w.mu.Unlock()
			} else if p := w.process(s.On); p != nil {
				w.operate(p, n, s)
			}
		})
	}
	steps.Wait()
	<-after(max(0, w.sc.Length-time.Since(w.epoch)))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// background runs f in a goroutine, to clean up after a killed process.
func (w *world) background(f func()) { w.rest.Go(f) }

// process returns process n, or nil if it is not running.
func (w *world) process(n int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[n]
}

// next returns the next number for an event.
func (w *world) next() int64 {
	w.seq++
	return w.seq
}

func (w *world) logf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace = append(w.trace, fmt.Sprintf("%v  %s", time.Since(w.epoch), fmt.Sprintf(format, args...)))
}

// violationf records a violation, which makes the scenario fail.
func (w *world) violationf(format string, args ...any) {
	w.logf("VIOLATION "+format, args...)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// wake makes the relays look for tasks, because in a bubble they are not notified of rows that other processes write.
func (w *world) wake() {
	w.mu.Lock()
	procs := slices.Clone(w.procs)
	w.mu.Unlock()
	for _, p := range procs {
		if p != nil {
			p.store.Wake()
		}
	}
}

// itemOf returns the item with the given id.
func (w *world) itemOf(id string) (item, bool) {
	if name, _, ok := schedule.ParseOccurrence(id); ok && name == recurring {
		return item{ID: id, Dest: taskQueue, Task: true}, true
	}
	i, ok := w.sc.Items[id]
	return i, ok
}

// began records the start of a handler's run, and reports whether this run has to fail.
func (w *world) began(p *process, d *amqpx.Delivery) (*run, item, bool) {
	i, known := w.itemOf(d.ID)
	payload, _ := strings.CutPrefix(string(d.Body), "body of ")
	w.logf("%s runs %s from %s, version %d, attempt %d, redelivered %t", p.name, d.ID, d.Queue, d.Version, d.Attempt, d.Redelivered)
	switch {
	case !known:
		w.violationf("%s was delivered but never sent", d.ID)
	case payload == string(d.Body) || d.Headers["x-payload"] != payload || d.CorrelationID != payload || d.ContentType != "text/plain":
		w.violationf("%s was delivered with body %q, headers %v, correlation id %q and content type %q, want those of one payload", d.ID, d.Body, d.Headers, d.CorrelationID, d.ContentType)
	case !slices.Contains(subscribers[i.Dest], d.Queue):
		w.violationf("%s to %s was delivered from queue %s", d.ID, i.Dest, d.Queue)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &run{call: w.next(), at: time.Now(), id: d.ID, queue: d.Queue, version: d.Version, attempt: d.Attempt, snoozed: d.Snoozes, payload: payload}
	if d.Queue == taskQueue && d.Attempt == 1 && d.Snoozes == 0 {
		w.slots[slot{d.ID, d.Version, d.DueAt.UnixMilli()}] = true
	}
	w.runs[r.call] = r
	key := d.Queue + " " + d.ID
	w.tries[key]++
	return r, i, w.tries[key] <= i.Times
}

// ended records when a handler's function returned.
func (w *world) ended(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.end = time.Now()
}

// keyed records the idempotency key of leased work, and checks that it is the same for all attempts.
func (w *world) keyed(d *amqpx.Delivery, key string) {
	w.mu.Lock()
	before, again := w.keys[string(d.Body)]
	w.keys[string(d.Body)] = key
	w.mu.Unlock()
	if again && before != key {
		w.violationf("%s has the idempotency keys %q and %q, want one key", d.ID, before, key)
	}
}

// took records the effect of a plain handler.
func (w *world) took(r *run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.took = true
}

// over records that the outcome of the runs is known.
func (w *world) over(runs []*run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range runs {
		r.ret = w.next()
	}
}

// task returns the task for an item of the scenario.
func (w *world) task(id, dest, payload string) schedule.Task {
	t := schedule.Task{
		ID: id, Body: []byte("body of " + payload), ContentType: "text/plain", CorrelationID: payload,
		Headers: map[string]string{"x-payload": payload}, UniqueKey: w.sc.Items[id].Key, ExpiresAfter: w.sc.Items[id].Ends,
	}
	if id == recurring {
		t.ID = ""
	}
	if exchange(dest) {
		t.Exchange, t.RoutingKey = dest, "k"
	} else {
		t.Queue = dest
	}
	return t
}

// settle waits in virtual time until no work is left, but not longer than bound.
func (w *world) settle() {
	for n := range w.sc.processes() {
		w.revive(n)
	}
	p := w.procs[0]
	w.retry("resume", func(ctx context.Context) error {
		var all error
		for _, dest := range []topology.Destination{{Queue: taskQueue}, {Exchange: tasks}} {
			all = errors.Join(all, p.store.Resume(ctx, schedule.NoTx, dest, 0))
		}
		return all
	})
	if w.sc.Every > 0 {
		w.withdrew = w.call(&event{what: "withdraw"}, func() error {
			return w.retry("pause of the recurring task", func(ctx context.Context) error {
				return p.store.Recurring().Pause(ctx, schedule.NoTx, recurring)
			})
		})
	}
	w.wake()
	for end := time.Now().Add(w.bound()); w.busy() && time.Now().Before(end); {
		<-after(time.Minute)
	}
	<-after(time.Minute)
	synctest.Wait()
}

// retry repeats an operation that must succeed because all faults are over.
func (w *world) retry(what string, do func(ctx context.Context) error) (err error) {
	for range 60 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err = do(ctx)
		cancel()
		if err == nil {
			return nil
		}
		<-after(10 * time.Second)
	}
	w.violationf("%s failed without faults, want no error: %v", what, err)
	return err
}

// bound returns the time after the last fault and the last due time within which everything must be finished.
func (w *world) bound() time.Duration {
	bound := 2*w.sc.Length + 10*time.Minute + w.sc.apart() // rescheduled and paused tasks become due within twice the length
	if !w.sc.calm() {
		bound += 90 * time.Minute // Grace doubles each time that a fault prevents a sent task from taking effect
	}
	if w.sc.RateLimit {
		bound += w.sc.spread()
	}
	if w.sc.Strategy == "ttl" {
		bound += 48 * time.Hour // the ttl strategy rounds delays up
	}
	return bound
}

// busy reports whether any message or task is waiting, apart from dead letters.
func (w *world) busy() bool {
	n, err := w.procs[0].store.CountUpTo(context.Background(), schedule.NoTx, schedule.Filter{Status: schedule.StatusPending}, 1)
	if err != nil || n > 0 {
		return true
	}
	for _, name := range w.srv.Queues() {
		q, _ := w.srv.Queue(name)
		if q.Unacked+q.DeadLetters+q.Delayed > 0 || q.Ready > 0 && !isDead(name) {
			return true
		}
	}
	return false
}

func isDead(queue string) bool {
	return strings.HasSuffix(queue, ".dead") || queue == topology.ParkedQueue("delay")
}

// revive starts process n if it is not running.
func (w *world) revive(n int) {
	if w.process(n) != nil {
		return
	}
	var p *process
	if w.retry(fmt.Sprintf("start of process %d", n), func(context.Context) (err error) {
		p, err = w.start(n)
		return err
	}) != nil {
		panic(strings.Join(w.wrong, "\n"))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[n] = p
}

// shutDown closes all processes gracefully, and checks that no connections are left.
func (w *world) shutDown() {
	for _, p := range w.procs {
		if err := p.close(); err != nil {
			w.violationf("closing %s: %v", p.name, err)
		}
	}
	w.rest.Wait()
	<-after(time.Second)
	if open := w.srv.Connections(); len(open) > 0 {
		w.violationf("connections are left open: %+v, want none", open)
	}
	if n := len(w.db.sessions); n > 0 {
		w.violationf("%d database sessions are left open, want 0", n)
	}
	_ = w.db.close()
}

// timeline returns the trace of all events.
func (w *world) timeline() string { return strings.Join(w.trace, "\n") }

// sortedIDs returns the sorted ids of the scenario's items.
func (w *world) sortedIDs() []string { return slices.Sorted(maps.Keys(w.sc.Items)) }
