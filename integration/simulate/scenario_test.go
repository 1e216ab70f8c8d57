package simulate

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// Destinations. The name of a queue is that of its kind of handler. Each exchange except nowhere has two queues.
const (
	plainQueue = "plain" // a plain amqpx.Handler
	idemQueue  = "idem"  // idempotency.Handler
	taskQueue  = "task"  // schedule.Handler
	leaseQueue = "lease" // schedule.LeaseHandler
	messages   = "msg"   // a fanout exchange with a plain and an idempotent subscriber
	tasks      = "ev"    // a fanout exchange with two subscribers of tasks
	nowhere    = "nowhere"

	delays = "delays" // all delay queues
)

// subscribers has the queues of each destination.
var subscribers = map[string][]string{
	plainQueue: {plainQueue}, idemQueue: {idemQueue}, taskQueue: {taskQueue}, leaseQueue: {leaseQueue},
	messages: {"msg.plain", "msg.idem"}, tasks: {"ev.a", "ev.b"}, nowhere: nil,
}

// exchange reports whether a destination is an exchange.
func exchange(dest string) bool { return dest == messages || dest == tasks || dest == nowhere }

// maxAttempts is the maximum number of attempts of every consumer.
const maxAttempts = 3

// failure is the way in which the handlers of an item fail.
type failure string

const (
	never   failure = ""
	errs    failure = "errors"  // returns errors, then succeeds
	panics  failure = "panics"  // panics, then succeeds
	rejects failure = "rejects" // always rejects
	snoozes failure = "snoozes" // snoozes, then succeeds
)

const (
	backoff = time.Second // before the first retry, doubled with each
	nap     = 20 * time.Second
)

// item is a message or a task of the scenario.
type item struct {
	ID    string
	Dest  string
	Task  bool
	Key   string // unique key
	How   failure
	Times int // how many times each queue's handler fails
	Slow  time.Duration
	Ends  time.Duration // schedule.Task.ExpiresAfter
	made  time.Duration // when the scenario sends or schedules it
	due   time.Duration // its original due time

	overdue bool // it has a delay shorter than the lead, and is due while no process consumes
}

// mayDie reports whether the item can become a dead letter because of its handlers or its destination.
func (i item) mayDie() bool {
	return i.How == rejects || (i.How == errs || i.How == panics) && i.Times >= maxAttempts || i.Dest == nowhere
}

// step is an operation of a process, or a fault, at a given time in the scenario.
type step struct {
	At   time.Duration
	What string
	On   int           // the process
	IDs  []string      // the messages or tasks that the step concerns
	In   time.Duration // the delay, or the due time relative to the step
	Abs  bool          // the message has a DeliverAt instead of a Delay
	For  time.Duration // how long a fault lasts; MaxWait of a unique key
	Cool time.Duration // Cooldown of a unique key
	Name string        // queue, method or mode
	N    int
}

func (s step) String() string {
	text := fmt.Sprintf("%v: %s %s", s.At, s.What, strings.Join(append(slices.Clone(s.IDs), s.Name), " "))
	if s.In != 0 {
		text += fmt.Sprintf(" in %v", s.In)
	}
	if s.For != 0 {
		text += fmt.Sprintf(" for %v", s.For)
	}
	if s.Cool != 0 {
		text += fmt.Sprintf(" with a cooldown of %v", s.Cool)
	}
	if s.N != 0 {
		text += fmt.Sprintf(" n=%d", s.N)
	}
	return fmt.Sprintf("%s (process %d)", text, s.On)
}

// Faults and operations.
var (
	faultKinds  = append(drawnFaults, jump)
	drawnFaults = []string{
		"cut all", "cut at", "cut at", "silence", "alarm", "nack", "deny", "restart", "refuse logins", "kill", "stall",
		"db fails", "db hangs", "commits break", "wipe",
	}
	taskOps = []string{
		"schedule", "schedule", "schedule", "replace", "unique", "unique", "cancel", "cancel", "move", "move",
		"move by", "run", "bulk cancel", "bulk move",
	}
	otherOps = []string{"send", "send", "send", "batch", "pause", "requeue", "stop consumers"}
	layouts  = []string{"radices", "binary", "hex", "clock", "fine"}
)

// handBack is the operation that makes a process return the messages that it holds, several times.
const handBack = "hand back"

// jump is the fault that sets a process's clock to an incorrect time for a while.
const jump = "clock jumps"

// isFault reports whether a step is a fault.
func (s step) isFault() bool { return slices.Contains(faultKinds, s.What) }

// scenario is everything that a seed determines.
type scenario struct {
	Seed      uint64
	Version   string // of the broker
	Strategy  string
	Next      string // the strategy after the layout change
	RateLimit bool   // whether the queue of tasks has a rate limit of one task every two seconds
	Lead      time.Duration
	Horizon   time.Duration
	Latency   time.Duration   // latency of the network, one way
	DBTakes   time.Duration   // the longest time that a statement takes
	Ahead     time.Duration   // how far the broker's clock is ahead
	Clocks    []time.Duration // how far each process's clock is ahead; empty if all of them are right
	DBAhead   time.Duration   // how far the database's clock is ahead
	Split     bool            // relays and consumers are separate processes
	Own       bool            // the queue of plain messages is declared by the user, without a delivery limit
	Group     int
	Length    time.Duration
	Misfire   schedule.Misfire
	Every     time.Duration // interval of the recurring task; 0 for none
	Items     map[string]item
	Steps     []step
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// span returns a random duration from least to most. Short ones are more likely.
func span(r *rand.Rand, least, most time.Duration) time.Duration {
	x := r.Float64()
	return (least + time.Duration(x*x*float64(most-least))).Truncate(time.Millisecond)
}

// draw returns the scenario for a seed. One in three has no faults, and has to meet additional requirements.
func draw(seed uint64) *scenario {
	r := rand.New(rand.NewPCG(seed, 0))
	sc := &scenario{
		Seed:     seed,
		Version:  pick(r, "3.10.8", "4.0.5", "4.3.0", "4.3.0"),
		Strategy: pick(r, "radices", "radices", "radices", "binary", "binary", "hex", "clock", "clock", "ttl", "native"),
		Lead:     pick(r, 0, 0, time.Second, 10*time.Second),
		Horizon:  pick(r, time.Minute, 10*time.Minute, 6*time.Hour),
		Latency:  pick(r, 0, time.Millisecond, 20*time.Millisecond),
		DBTakes:  pick(r, 0, 2*time.Millisecond, 50*time.Millisecond),
		Ahead:    pick(r, 0, 0, 0, 90*time.Minute, -90*time.Minute),
		Split:    r.IntN(2) == 0,
		Group:    pick(r, 1, 1, 20),
		Length:   span(r, 5*time.Minute, 2*time.Hour),
		Misfire:  pick(r, schedule.MisfireAll, schedule.MisfireAll, schedule.MisfireOnce, schedule.MisfireSkip),
		Every:    pick(r, 0, time.Minute, 7*time.Minute),
		Items:    map[string]item{},
	}
	if sc.Strategy == "native" {
		sc.Version, sc.Ahead = "4.4.0", 0
	}
	if sc.Strategy == "ttl" { // which supports neither a lead nor tasks
		sc.Lead, sc.Every = 0, 0
	}
	for range 8 + r.IntN(25) {
		sc.Steps = append(sc.Steps, sc.operation(r))
	}
	if slices.Contains(layouts, sc.Strategy) && r.IntN(4) == 0 {
		sc.Next = pick(r, append(layouts, "fine", "fine")...) // layouts with other digits under the same names
		sc.Steps = append(sc.Steps, step{At: span(r, 0, sc.Length), What: "change layout", For: span(r, time.Second, time.Minute)})
	}
	sc.RateLimit = r.IntN(4) == 0
	if r.IntN(3) > 0 {
		for range 1 + r.IntN(6) {
			sc.Steps = append(sc.Steps, sc.fault(r))
		}
	}
	sc.drawClocks(rand.New(rand.NewPCG(seed, 2)))
	sc.drawReturns(rand.New(rand.NewPCG(seed, 3)))
	sc.drawOverdue(rand.New(rand.NewPCG(seed, 4)))
	slices.SortStableFunc(sc.Steps, func(a, b step) int { return int(a.At - b.At) })
	return sc
}

// drawClocks makes clocks wrong, always or for a while, in every fourth scenario. With the native strategy, all clocks
// are right, because a connection measures the difference between the clocks only once.
func (sc *scenario) drawClocks(r *rand.Rand) {
	if sc.Strategy == "native" || r.IntN(4) > 0 {
		return
	}
	wrong := func() time.Duration {
		by := pick(r, time.Second, 5*time.Second, 30*time.Second, span(r, time.Minute, 3*time.Hour), time.Hour)
		return pick(r, by, -by)
	}
	for range sc.processes() {
		sc.Clocks = append(sc.Clocks, pick(r, 0, wrong()))
	}
	sc.DBAhead = pick(r, 0, wrong()).Truncate(time.Second) // the ids of occurrences contain whole seconds
	for range r.IntN(3) {
		sc.Steps = append(sc.Steps, step{At: span(r, 0, sc.Length), What: jump, On: r.IntN(sc.processes()), In: wrong(), For: span(r, time.Second, sc.Length)})
	}
}

// drawReturns makes consumers return the messages that they hold, in every third scenario with a lead. Some consumers
// return them a few times, and some more often than RabbitMQ 4 allows. The consumers have few slots, so their prefetch
// has to grow.
func (sc *scenario) drawReturns(r *rand.Rand) {
	if sc.Lead == 0 || r.IntN(3) > 0 {
		return
	}
	sc.Own = true
	for range 1 + r.IntN(2) {
		made := span(r, 0, sc.Length)
		in := 2*sc.Lead + span(r, time.Second, time.Minute) // so that it is held for as long as possible
		s := step{At: made, What: "batch", In: in}
		for range 1 + r.IntN(4) {
			id := fmt.Sprintf("m%d", len(sc.Items)+1)
			sc.Items[id] = item{ID: id, Dest: plainQueue, made: made, due: made + in}
			s.IDs = append(s.IDs, id)
		}
		back := step{At: made + in - sc.Lead*3/4, What: handBack, N: pick(r, 1, 2, 30)}
		back.For = sc.Lead * 5 / 8 / time.Duration(back.N)
		sc.Steps = append(sc.Steps, s, back)
		if r.IntN(3) == 0 { // while a consumer subscribes, or grows its prefetch
			cut := step{At: back.At, What: "cut at", Name: pick(r, "basic.qos", "basic.consume", "basic.consume-ok"), N: 1 + r.IntN(6), For: sc.Lead}
			sc.Steps = append(sc.Steps, cut)
		}
	}
}

// drawOverdue stops all consumers up to three times, in every other scenario with a long lead. During the stops,
// messages with delays shorter than their lead are sent and become due. Half of the stops are longer than the 10
// minutes for which a client remembers the broker's clock, so that it has to ask again.
func (sc *scenario) drawOverdue(r *rand.Rand) {
	if sc.Lead < 10*time.Second || r.IntN(2) > 0 {
		return
	}
	for range 1 + r.IntN(3) {
		away := pick(r, span(r, time.Minute, 5*time.Minute), span(r, 11*time.Minute, 20*time.Minute))
		stop := step{At: span(r, 0, sc.Length), What: "stop consumers", N: sc.processes(), For: away}
		sc.Steps = append(sc.Steps, stop)
		for range 1 + r.IntN(3) {
			sc.Steps = append(sc.Steps, sc.overdue(r, stop))
		}
	}
}

// overdue returns a step that sends messages which become due during a stop of the consumers.
func (sc *scenario) overdue(r *rand.Rand, stop step) step {
	s := step{At: stop.At + 12*time.Second + span(r, 0, stop.For/2), What: "batch", On: r.IntN(sc.processes()), Abs: r.IntN(3) == 0}
	s.In = sc.Lead/2 + span(r, 0, sc.Lead/2)
	for range 1 + r.IntN(4) {
		id := fmt.Sprintf("m%d", len(sc.Items)+1)
		sc.Items[id] = item{ID: id, Dest: plainQueue, made: s.At, due: s.At + s.In, overdue: !s.Abs}
		s.IDs = append(s.IDs, id)
	}
	return s
}

// away returns the index of the step that stops all consumers while a message becomes due. alone is true if no other
// step affects the consumers until a minute after that stop: no other stop, no returned messages, and no fault later
// than 5 minutes before it.
func (sc *scenario) away(i item) (stop int, alone bool) {
	stop = slices.IndexFunc(sc.Steps, func(s step) bool {
		return s.What == "stop consumers" && s.N > 0 && s.At <= i.made && i.due <= s.At+s.For
	})
	if stop < 0 || sc.has("change layout") {
		return stop, false
	}
	from, to := sc.Steps[stop].At, sc.Steps[stop].At+sc.Steps[stop].For+time.Minute
	for n, s := range sc.Steps {
		over := s.At + s.For + 15*time.Second // consumers drain for up to 10 s before they stop
		if s.isFault() {
			over = s.At + s.For + 5*time.Minute
		}
		disturbs := s.isFault() || s.What == "stop consumers" || s.What == handBack
		if n != stop && disturbs && s.At <= to && over >= from {
			return stop, false
		}
	}
	return stop, true
}

// sets reports whether a jump makes a process's clock incorrect at any time in the interval.
func (sc *scenario) sets(process int, from, to time.Duration) bool {
	return slices.ContainsFunc(sc.Steps, func(s step) bool {
		return s.What == jump && s.On == process && s.At <= to && s.At+s.For >= from
	})
}

// apart returns the largest difference between the clocks, including the broker's.
func (sc *scenario) apart() time.Duration {
	if len(sc.Clocks) == 0 {
		return 0
	}
	low, high := sc.ranges()
	return max(0, sc.Ahead, sc.DBAhead, slices.Max(high)) - min(0, sc.Ahead, sc.DBAhead, slices.Min(low))
}

// ranges returns the smallest and the largest amounts by which the processes' clocks are ahead.
func (sc *scenario) ranges() (low, high []time.Duration) {
	low, high = slices.Clone(sc.Clocks), slices.Clone(sc.Clocks)
	for _, s := range sc.Steps {
		if s.What == jump {
			low[s.On] += min(0, s.In)
			high[s.On] += max(0, s.In)
		}
	}
	return low, high
}

// agree reports whether the clocks of all consumers agree with the database's. In that case, no other clock makes a
// task late.
func (sc *scenario) agree() bool {
	low, high := sc.ranges()
	for n := range sc.Clocks {
		if _, handles := sc.roles(n); handles && (low[n] != sc.DBAhead || high[n] != sc.DBAhead) {
			return false
		}
	}
	return true
}

// roles reports whether process n runs a relay and whether it runs consumers. Process 0 runs neither.
func (sc *scenario) roles(n int) (relays, handles bool) {
	return n > 0 && (!sc.Split || n <= 2), n > 0 && (!sc.Split || n > 2)
}

// processes returns the number of processes. Process 0 has neither a relay nor consumers.
func (sc *scenario) processes() int {
	if sc.Split {
		return 5
	}
	return 3
}

// mayDie reports whether the item's own mayDie is true, or faults can use up its attempts. An unavailable database uses
// up the attempts of handlers that need it, and so do a broker that refuses the permission to send, and anything that
// prevents the renewal of a lease.
func (sc *scenario) mayDie(i item) bool {
	needsDB := i.Dest != plainQueue // at least one queue of each exchange needs it
	return i.mayDie() || needsDB && sc.has("db fails", "db hangs", "commits break") || i.Task && sc.has("deny") || i.Dest == leaseQueue && sc.slow()
}

// slow reports whether handlers' transactions may block the database for longer than a lease, or for longer than a
// handler waits to record a failure.
func (sc *scenario) slow() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(sc.Items)), func(x item) bool {
		return x.Slow > 0 && x.Dest != plainQueue && x.Dest != leaseQueue
	})
}

// has reports whether the scenario has a step of one of these kinds.
func (sc *scenario) has(kinds ...string) bool {
	return slices.ContainsFunc(sc.Steps, func(s step) bool { return slices.Contains(kinds, s.What) })
}

// perSecond is the rate limit of the queue of tasks, in tasks per second.
const perSecond = 0.5

// spread returns how late the rate limit may make its tasks.
func (sc *scenario) spread() time.Duration {
	n := 10 + 2*len(sc.Items)
	if sc.Every > 0 {
		n += int(sc.Length / sc.Every)
	}
	return time.Duration(float64(n) / perSecond * float64(time.Second))
}

// calm reports whether the scenario has no faults.
func (sc *scenario) calm() bool { return !sc.has(faultKinds...) }

func (sc *scenario) add(r *rand.Rand, at, in time.Duration, task bool, dests ...string) string {
	i := item{ID: fmt.Sprintf("m%d", len(sc.Items)+1), Dest: pick(r, dests...), Task: task, made: at, due: at + in}
	if task {
		i.ID = "t" + i.ID[1:]
	}
	switch r.IntN(9) {
	case 0:
		i.How, i.Times = errs, 1+r.IntN(2*maxAttempts)
	case 1:
		i.How, i.Times = panics, 1+r.IntN(maxAttempts-1)
	case 2:
		i.How = rejects
	case 3:
		i.Slow = span(r, time.Second, time.Minute)
	case 4:
		i.How, i.Times = snoozes, 1+r.IntN(2*maxAttempts)
	}
	if task && r.IntN(4) == 0 {
		i.Ends = span(r, time.Second, 2*time.Minute)
	}
	if i.Dest == tasks && i.mayDie() { // because the row would show the failure in one queue and nothing about the other
		i.How, i.Times = never, 0
	}
	if i.Dest == leaseQueue && i.How == never && i.Slow == 0 {
		i.Slow = 30 * time.Second // three leases
	}
	if i.How != never && r.IntN(3) == 0 {
		i.Slow = span(r, time.Second, 20*time.Second) // how long the handler works before it fails
	}
	sc.Items[i.ID] = i
	return i.ID
}

func (sc *scenario) operation(r *rand.Rand) step {
	s := step{At: span(r, 0, sc.Length), On: r.IntN(sc.processes()), In: span(r, 0, sc.Length), Abs: r.IntN(2) == 0}
	if r.IntN(6) == 0 {
		s.In = 0
	}
	if s.What = pick(r, taskOps...); r.IntN(3) == 0 {
		s.What = pick(r, otherOps...)
	}
	if sc.Strategy == "ttl" {
		s.What = pick(r, "send", "send", "batch", "requeue", "stop consumers")
	}
	switch s.What {
	case "send", "batch":
		for range map[string]int{"send": 1, "batch": 1 + r.IntN(8)}[s.What] {
			s.IDs = append(s.IDs, sc.add(r, s.At, s.In, false, plainQueue, idemQueue, messages, messages))
		}
		if r.IntN(20) == 0 {
			s.IDs[0] = sc.add(r, s.At, s.In, false, nowhere)
		}
	case "schedule":
		for range 1 + r.IntN(3) {
			s.IDs = append(s.IDs, sc.add(r, s.At, s.In, true, taskQueue, taskQueue, taskQueue, leaseQueue, tasks, tasks, nowhere))
		}
	case "unique":
		id := sc.add(r, s.At, s.In, true, taskQueue)
		i := sc.Items[id]
		i.Key, i.Ends = pick(r, "k1", "k2"), 0
		sc.Items[id] = i
		s.For, s.Cool = span(r, time.Second, 2*sc.Length), pick(r, 0, 0, time.Minute, 30*time.Minute)
		s.IDs, s.Name = []string{id}, string(pick(r, schedule.KeepPending, schedule.ReplacePending, schedule.PushBackPending))
	case "pause":
		s.Name, s.For, s.In = pick(r, taskQueue, tasks), span(r, time.Second, sc.Length/2), pick(r, 0, time.Minute)
	case "requeue":
		s.In = 0
		s.Name = pick(r, plainQueue, idemQueue, taskQueue, leaseQueue, "msg.plain", "msg.idem") + ".dead"
		if i, ok := sc.anyDead(r); ok { // when the message has become a dead letter
			s.Name, s.At = i.Dest+".dead", min(i.due+span(r, 5*time.Second, 5*time.Minute), sc.Length)
		}
	case "stop consumers":
		if s.For = span(r, time.Second, 20*time.Minute); r.IntN(3) == 0 {
			s.N, s.For = sc.processes(), s.For+3*time.Minute // all processes
		}
		if last, ok := sc.Items[fmt.Sprintf("m%d", len(sc.Items))]; ok && sc.Lead > 0 { // while the consumers hold a message
			s.At = min(max(0, last.due-sc.Lead/2), sc.Length)
		}
	default:
		s.IDs = []string{sc.anyTask(r)}
		i := sc.Items[s.IDs[0]]
		switch r.IntN(5) { // often when the relay sends the task, its message arrives, or its handler runs
		case 0:
			s.At = i.made + span(r, 0, 300*time.Millisecond)
		case 1:
			s.At = min(i.due, sc.Length) + span(r, 0, 500*time.Millisecond)
		case 2:
			s.At = min(i.due, sc.Length) + span(r, 0, i.Slow+time.Second)
		default:
			s.At = i.made + span(r, 0, sc.Length-i.made)
		}
		if s.What == "move by" {
			s.In -= sc.Length / 4
		}
		if strings.HasPrefix(s.What, "bulk") {
			s.IDs = append(s.IDs, sc.anyTask(r), sc.anyTask(r))
		}
	}
	return s
}

// anyTask returns the id of a task in the scenario or, if there is none, of a new one that no step schedules.
func (sc *scenario) anyTask(r *rand.Rand) string {
	var ids []string
	for n := range len(sc.Items) {
		if id := fmt.Sprintf("t%d", n+1); sc.Items[id].Task {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return sc.add(r, 0, 0, true, taskQueue)
	}
	return pick(r, ids...)
}

// anyDead returns a message or task to a single queue that can become a dead letter, if there is one.
func (sc *scenario) anyDead(r *rand.Rand) (i item, ok bool) {
	var list []item
	for _, id := range slices.Sorted(maps.Keys(sc.Items)) {
		if x := sc.Items[id]; x.mayDie() && !exchange(x.Dest) {
			list = append(list, x)
		}
	}
	if len(list) == 0 {
		return i, false
	}
	return pick(r, list...), true
}

// lastOf returns the last step of a kind, or another step.
func (sc *scenario) lastOf(kind string, other step) step {
	for _, s := range sc.Steps {
		if s.What == kind {
			other = s
		}
	}
	return other
}

func (sc *scenario) fault(r *rand.Rand) step {
	s := step{At: span(r, 0, sc.Length), On: 1 + r.IntN(sc.processes()-1), What: pick(r, drawnFaults...), For: span(r, 100*time.Millisecond, 5*time.Minute)}
	x := pick(r, sc.Steps...)
	if s.What == "nack" && r.IntN(2) == 0 {
		x = sc.lastOf("requeue", x)
	}
	switch {
	case x.What == "requeue": // during a requeue
		s.At = max(0, x.At-s.For/2)
	case r.IntN(2) == 0: // around the time at which an item is claimed, sent, received or handled
		at := min(x.At+pick(r, 0, x.In, x.In, x.In-sc.Horizon), sc.Length)
		for _, id := range x.IDs {
			at += span(r, 0, sc.Items[id].Slow)
		}
		s.At = max(0, at+span(r, 0, time.Second)-pick(r, 0, 0, s.For/2))
	}
	switch s.What {
	case "cut at":
		s.Name, s.N = pick(r, "basic.publish", "basic.ack", "basic.ack", "basic.deliver", "queue.declare-ok",
			"queue.bind", "confirm.select-ok", "basic.nack"), 1+r.IntN(5)
	case "silence":
		s.Name = pick(r, taskQueue, plainQueue, idemQueue, "plain.dead", tasks)
	case "nack":
		s.Name = pick(r, delays, delays, taskQueue, plainQueue, idemQueue, "plain.dead", "task.dead")
		if x.What == "requeue" {
			s.Name = strings.TrimSuffix(x.Name, ".dead")
		}
	case "deny":
		s.Name = pick(r, string("write"), "read", "configure")
	case "commits break":
		s.N, s.Name = 1+r.IntN(4), pick(r, "applied", "undone")
	}
	return s
}

// strategy returns the strategy that all clients use at first.
func (sc *scenario) strategy() (amqpx.Strategy, error) {
	switch sc.Strategy {
	case "ttl":
		return dlx.NewTTL(dlx.TTLConfig{RoundUp: true, Delays: []time.Duration{
			time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour,
		}})
	case "native":
		return dlx.NewNative(dlx.NativeConfig{Queues: 1})
	}
	l := layout(sc.Strategy)
	return dlx.NewBucket(dlx.BucketConfig{Layout: l.Layout, Radices: l.Radices, Resolution: l.Resolution})
}

// changed returns the strategy that all clients use after the layout change.
func (sc *scenario) changed() (amqpx.Strategy, error) {
	c, err := config.Load(config.Source{})
	if err != nil {
		return nil, err
	}
	was := layout(sc.Strategy)
	c.Delay.Bucket = layout(sc.Next)
	c.Delay.Previous = []config.Previous{{Layout: was.Layout, Radices: was.Radices, Resolution: was.Resolution}}
	return c.Offline()
}

func layout(name string) config.Layout {
	switch name {
	case "radices":
		return config.Layout{Radices: []int{8, 8, 8, 8, 8, 8}, Resolution: 100 * time.Millisecond}
	case "hex":
		return config.Layout{Layout: dlx.LayoutHex, Resolution: time.Second}
	case "binary":
		return config.Layout{Layout: dlx.LayoutBinary, Resolution: 10 * time.Millisecond}
	case "fine":
		return config.Layout{Layout: dlx.LayoutClock, Resolution: 10 * time.Millisecond}
	}
	return config.Layout{Layout: dlx.LayoutClock, Resolution: 100 * time.Millisecond}
}

// String describes the scenario and lists its steps.
func (sc *scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "RabbitMQ %s, strategy %s, lead %v, horizon %v, latency %v, statements %v, broker's clock %v, "+
		"processes' %v, database's %v, split %t, groups of %d, recurring every %v (%s), %v long, then %q, rate limit %t\n",
		sc.Version, sc.Strategy, sc.Lead, sc.Horizon, sc.Latency, sc.DBTakes, sc.Ahead, sc.Clocks, sc.DBAhead,
		sc.Split, sc.Group, sc.Every, sc.Misfire, sc.Length, sc.Next, sc.RateLimit)
	for _, s := range sc.Steps {
		fmt.Fprintf(&b, "  %v\n", s)
		for _, id := range s.IDs {
			if i := sc.Items[id]; i.How != never || i.Slow+i.Ends != 0 {
				fmt.Fprintf(&b, "    %s to %s: failure %q %d times, handlers take %v, expires after %v\n", id, i.Dest, i.How, i.Times, i.Slow, i.Ends)
			}
		}
	}
	return b.String()
}
