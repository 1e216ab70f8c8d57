package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// state is a task's state in the model.
type state struct {
	status  schedule.Status // "" for a task that does not exist
	due     int64           // ms
	exact   bool            // due is the exact due time, and not only a lower bound
	payload string
	took    int // subscribers of an exchange that have had their effect, as bits

	from, to int64 // the task was created between these times, in ms
}

// effect is the prefix of the name of an event for a handler's effect.
const effect = "effect in"

// slack is the number of milliseconds by which a handler may be early according to docs/guarantees-details.md. It is
// the possible error of a clock comparison plus the millisecond to which times are rounded.
const slack = 20 + 1

// after returns the possible states of a task after an event, or none if the event is impossible in the state s.
func (i item) after(e *event, s state) (all []state) {
	switch {
	case errors.Is(e.err, schedule.ErrExists):
		return when(s.status != "", s)
	case errors.Is(e.err, schedule.ErrNotFound):
		return when(s.status == "", s)
	case errors.Is(e.err, schedule.ErrStatus):
		return when(s.status != "" && (s.status != schedule.StatusPending || i.Dest == leaseQueue), s)
	}
	if e.maybe {
		all = append(all, s)
	}
	pending := s.status == schedule.StatusPending
	due := millis(e.due)
	fresh := state{status: schedule.StatusPending, due: due, exact: true, payload: e.payload, from: e.at.UnixMilli(), to: e.back.UnixMilli()}
	// atMost returns the due time to which a task that was scheduled at made is pushed back.
	atMost := func(made int64) int64 { return min(millis(e.asked), made+e.wait.Milliseconds()) }
	moved := s
	moved.due = due
	switch e.what {
	case "schedule", string(schedule.UniqueCreated):
		return append(all, when(s.status == "", fresh)...)
	case "replace":
		return append(all, fresh)
	case string(schedule.UniqueReplaced):
		return append(all, when(pending, fresh)...)
	case string(schedule.UniqueKept):
		return append(all, when(pending && (!s.exact || s.due == due) && (e.wait == 0 || atMost(s.from) <= due), s)...)
	case string(schedule.UniqueRefused):
		return append(all, when(s.status == schedule.StatusDone, s)...)
	case string(schedule.UniquePushedBack):
		moved.exact = !e.maybe
		moved.due = max(s.due, due)
		if e.maybe {
			moved.due = s.due // this is a lower bound
		}
		return append(all, when(pending && (e.maybe || due >= s.due && atMost(s.from) <= due && due <= atMost(s.to)), moved)...)
	case "cancel":
		s.status = schedule.StatusCancelled
		return append(all, when(pending, s)...)
	case "move":
		return append(all, when(pending, moved)...)
	case "move by":
		s.due += e.by.Milliseconds()
		return append(all, when(pending, s)...)
	case "run":
		moved.due, moved.exact = e.at.UnixMilli(), false
		return append(all, when(pending, moved)...)
	case "bulk cancel":
		if i.Dest == leaseQueue { // the task may be running
			all = append(all, s)
		}
		if pending {
			s.status = schedule.StatusCancelled
		}
		return append(all, s)
	case "bulk move":
		if i.Dest == leaseQueue {
			all = append(all, s)
		}
		if pending {
			s.due = due
		}
		return append(all, s)
	case "requeue":
		if s.status == schedule.StatusFailed {
			s.status, s.due, s.exact = schedule.StatusPending, e.at.UnixMilli(), false
		}
		return append(all, s)
	}
	return i.happens(e, s)
}

// happens returns the possible states after an effect. The method after handles all other events.
func (i item) happens(e *event, s state) []state {
	queue, _ := strings.CutPrefix(e.what, effect)
	bit := 1 << slices.Index(subscribers[i.Dest], queue)
	first := s.status == schedule.StatusPending
	if s.took&bit != 0 || !first && (s.status != schedule.StatusDone || !exchange(i.Dest)) ||
		e.payload != s.payload || e.at.UnixMilli() < s.due-slack {
		return nil
	}
	s.status, s.took = schedule.StatusDone, s.took|bit
	return []state{s}
}

// millis returns a time in milliseconds, rounded up like due times.
func millis(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }

func when(possible bool, s state) []state {
	if possible {
		return []state{s}
	}
	return nil
}

// explains reports whether the events, each of which takes effect between its call and its return, have an order that
// leads to the final state.
func (i item) explains(events []*event, mayDie bool, end func(state) bool) bool {
	type node struct {
		done uint64
		at   state
	}
	seen := map[node]bool{}
	var search func(n node) bool
	search = func(n node) bool {
		if seen[n] {
			return false
		}
		seen[n] = true
		if n.done == 1<<len(events)-1 && end(n.at) {
			return true
		}
		if n.at.status == schedule.StatusPending && mayDie {
			failed := n
			failed.at.status = schedule.StatusFailed
			if search(failed) {
				return true
			}
		}
		if n.at.status == schedule.StatusPending && i.Ends > 0 {
			over := n
			over.at.status = schedule.StatusExpired
			if search(over) {
				return true
			}
		}
		first := int64(math.MaxInt64) // the earliest return of the remaining events
		for k, e := range events {
			if n.done&(1<<k) == 0 {
				first = min(first, e.ret)
			}
		}
		for k, e := range events {
			if n.done&(1<<k) != 0 || e.call > first {
				continue
			}
			for _, next := range i.after(e, n.at) {
				if search(node{n.done | 1<<k, next}) {
					return true
				}
			}
		}
		return false
	}
	return search(node{})
}

// check compares the history and the final state with the model.
func (w *world) check() {
	rows := map[string]schedule.TaskRow{}
	for t, err := range w.procs[0].store.List(context.Background(), schedule.NoTx, schedule.Filter{}) {
		if err != nil {
			w.violationf("list: %v", err)
			return
		}
		t.DeliverAt, t.FinishedAt = w.fromDB(t.DeliverAt), w.fromDB(t.FinishedAt)
		rows[t.ID] = t
	}
	if err := w.readEffects(); err != nil {
		w.violationf("effects: %v", err)
		return
	}
	for _, e := range w.events {
		if e.maybe && w.sc.calm() && !w.sc.has("change layout") && !errors.Is(e.err, context.DeadlineExceeded) {
			w.violationf("%s of %s failed without faults, want no error: %v", e.what, e.id, e.err)
		}
	}
	for _, id := range w.sortedIDs() {
		if i := w.sc.Items[id]; i.Task {
			w.checkTask(i, rows)
		} else {
			w.checkMessage(i)
		}
	}
	w.checkRecurring(rows)
	w.checkCooldowns(rows)
	w.checkRateLimit()
	w.checkCounts(rows)
	w.checkBroker(rows)
	w.checkProcesses()
}

// readEffects marks the runs whose effects are in the database.
func (w *world) readEffects() error {
	found, err := w.procs[0].db.QueryContext(context.Background(), "SELECT run FROM effects")
	if err != nil {
		return err
	}
	defer func() { _ = found.Close() }()
	for found.Next() {
		var call int64
		if err := found.Scan(&call); err != nil {
			return err
		}
		w.runs[call].took = true
	}
	return found.Err()
}

// runsOf returns the runs of an item's handlers in a queue, or in all queues if it is empty, in the order of their
// start.
func (w *world) runsOf(id, queue string) (list []*run) {
	for _, call := range slices.Sorted(maps.Keys(w.runs)) {
		if r := w.runs[call]; r.id == id && (queue == "" || r.queue == queue) {
			list = append(list, r)
		}
	}
	return list
}

func effects(runs []*run) (n int) {
	for _, r := range runs {
		if r.took {
			n++
		}
	}
	return n
}

// checkTask checks that the model explains the final state of a task.
func (w *world) checkTask(i item, rows map[string]schedule.TaskRow) {
	var events []*event
	for _, e := range w.events {
		if e.id == i.ID {
			events = append(events, e)
		}
	}
	for _, r := range w.runsOf(i.ID, "") {
		if r.took {
			events = append(events, &event{what: effect + r.queue, id: i.ID, call: r.call, ret: r.ret, at: r.at, payload: r.payload})
		}
	}
	if w.sc.mayDie(i) {
		for _, q := range w.requeues {
			x := *q
			x.maybe = true
			events = append(events, &x)
		}
	}
	slices.SortFunc(events, func(a, b *event) int { return int(a.call - b.call) })
	for _, e := range events {
		if e.ret == 0 {
			e.ret = math.MaxInt64 // its process was killed
		}
	}
	row, exists := rows[i.ID]
	payload, _ := strings.CutPrefix(string(row.Body), "body of ")
	if !i.explains(events, w.sc.mayDie(i), func(s state) bool {
		return row.Status == s.status && (!exists || payload == s.payload && (!s.exact || row.DeliverAt.UnixMilli() == s.due))
	}) {
		w.violationf("no order of the events explains the final state of task %s: %q (due %v, payload %q, %d sends, %s):%s",
			i.ID, row.Status, row.DeliverAt.Sub(w.epoch), payload, row.Sends, row.LastError, w.history(events))
	}
	switch row.Status {
	case schedule.StatusPending, schedule.StatusRunning:
		w.violationf("task %s is %s %v after it was due (%d sends, %s)", i.ID, row.Status, time.Since(row.DeliverAt), row.Sends, row.LastError)
	case schedule.StatusDone:
		for _, q := range subscribers[i.Dest] {
			if effects(w.runsOf(i.ID, q)) == 0 && w.faulty.IsZero() {
				w.violationf("task %s had no effect in %s", i.ID, q)
			}
		}
	}
	w.checkExpiry(i, row)
	w.checkLeases(i)
	if w.sc.calm() {
		w.checkCalmTask(i, row, events)
	}
}

// checkExpiry checks that a task expired if and only if it was not handled before its expiry time.
func (w *world) checkExpiry(i item, row schedule.TaskRow) {
	over := row.DeliverAt.Add(i.Ends)
	most := w.mostLate() // its handler may have started in time
	if i.Dest == taskQueue {
		most = 0 // the fence writes the time that it compares
	}
	switch {
	case i.Ends == 0:
	case row.Status == schedule.StatusExpired && row.FinishedAt.Before(over):
		w.violationf("task %s expired %v before its expiry time", i.ID, over.Sub(row.FinishedAt))
	case row.Status == schedule.StatusDone && row.FinishedAt.After(over.Add(most)):
		w.violationf("task %s had its effect %v after its expiry time, want it before", i.ID, row.FinishedAt.Sub(over))
	}
}

// checkLeases checks that no two handlers work on a leased task at the same time, and that no operation changes the
// task while a handler works on it.
func (w *world) checkLeases(i item) {
	runs := w.runsOf(i.ID, leaseQueue)
	for n, a := range runs {
		for _, b := range runs[n+1:] {
			if a.payload == b.payload && a.version == b.version && a.end.After(b.at) {
				w.violationf("two handlers worked on task %s at %v, want one", i.ID, b.at.Sub(w.epoch))
			}
		}
		for _, e := range w.events {
			if e.what == "replace" && e.id == i.ID && e.back.After(a.at) && e.at.Before(a.end) {
				break // a replacement takes the task from its handler
			}
			if e.id == i.ID && e.err == nil && e.at.After(a.at) && e.back.Before(a.end) && slices.Contains([]string{"cancel", "move", "move by", "run"}, e.what) {
				w.violationf("%s of task %s succeeded at %v, while a handler worked on it", e.what, i.ID, e.at.Sub(w.epoch))
			}
		}
	}
}

// paused reports whether a task's destination was paused at the given time and had been paused for longer than it takes
// to recall messages.
func (w *world) paused(i item, at time.Time) bool {
	var since *event
	for _, g := range w.gates {
		if g.what == "pause" && g.id == i.Dest && g.err == nil && at.Sub(g.back) > w.mostLate() && (since == nil || g.call > since.call) {
			since = g
		}
	}
	return since != nil && !slices.ContainsFunc(w.gates, func(g *event) bool {
		return g.what == "resume" && g.id == i.Dest && (g.ret == 0 || g.ret > since.call) && !g.at.After(at)
	})
}

// checkWaits checks how long a message waited between two attempts.
func (w *world) checkWaits(id string) {
	last := map[string]*run{} // by queue
	for _, r := range w.runsOf(id, "") {
		before := last[r.queue]
		last[r.queue] = r
		if before == nil || before.version != r.version || w.sc.has("requeue") {
			continue
		}
		want := time.Duration(0)
		switch {
		case r.attempt == before.attempt+1:
			want = backoff << (before.attempt - 1)
		case r.snoozed == before.snoozed+1:
			want = nap
		}
		if got := r.at.Sub(before.at); got < want-time.Duration(w.slack())*time.Millisecond {
			w.violationf("attempt %d of %s in %s started %v after the previous one, want at least %v", r.attempt, id, r.queue, got, want)
		}
	}
}

// mayDoubt reports whether a relay may consider a task's message lost although there was no fault. That is possible if
// no consumer receives messages from an exchange, if slow transactions keep a failure from being recorded, if starting
// consumers hold late messages for a lead, and if clocks differ by more than Grace.
func (w *world) mayDoubt(i item) bool {
	return w.sc.apart() > 2*time.Minute ||
		w.sc.Lead >= 10*time.Second && w.sc.has("stop consumers") ||
		(i.Dest == leaseQueue || i.How != never) && w.sc.slow() ||
		exchange(i.Dest) && w.sc.has("stop consumers", "change layout")
}

// history returns the events of an item as text.
func (w *world) history(events []*event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "\n    %v..%v %s due %v by %v payload %q err %v maybe %t", e.at.Sub(w.epoch),
			max(0, e.back.Sub(w.epoch)), e.what, e.due.Sub(w.epoch), e.by, e.payload, e.err, e.maybe)
	}
	return b.String()
}

// checkCalmTask checks additional requirements for tasks in scenarios without faults.
func (w *world) checkCalmTask(i item, row schedule.TaskRow, events []*event) {
	switch {
	case w.mayDoubt(i) && (row.Sends > 1 || w.sc.slow()):
		// Two messages have separate attempts. A relay does not count the second one on a row that a slow handler has
		// locked.
	case row.Sends <= 1:
		w.checkWaits(i.ID)
	default:
		w.violationf("task %s was sent %d times without faults, want once", i.ID, row.Sends)
	}
	for n, r := range slices.DeleteFunc(w.runsOf(i.ID, ""), func(r *run) bool { return !r.took }) {
		if n == 0 && w.paused(i, r.at) { // another queue may have its effect later
			w.violationf("task %s had its effect at %v, while %s was paused", i.ID, r.at.Sub(w.epoch), i.Dest)
		}
	}
	if row.Status != schedule.StatusDone || !w.undelayed() {
		return
	}
	last := row.DeliverAt
	for _, e := range events {
		if !strings.HasPrefix(e.what, effect) {
			last = later(last, e.back)
		}
	}
	for _, r := range w.runsOf(i.ID, "") {
		if late := r.at.Sub(last); r.took && late > w.mostLateTask() {
			w.violationf("task %s had its effect %v late without faults, want at most %v", i.ID, late, w.mostLateTask())
		}
	}
}

// undelayed reports whether the scenario contains nothing that delays messages.
func (w *world) undelayed() bool {
	return w.sc.Strategy != "ttl" && !w.sc.has("pause", "stop consumers", "change layout")
}

// mostLate returns how late an effect may be without faults, because of the resolution, the time that the network and
// the database take, retries, and handlers that keep the database busy.
func (w *world) mostLate() time.Duration {
	late := 10*time.Second + 100*w.sc.Latency + 500*w.sc.DBTakes + w.sc.apart()
	for _, i := range w.sc.Items {
		late += time.Duration(2+i.Times)*i.Slow + nap*time.Duration(map[failure]int{snoozes: i.Times}[i.How])
	}
	if w.sc.RateLimit {
		late += w.sc.spread()
	}
	return late
}

// mostLateTask returns how late a task's effect may be without faults. The clocks of relays and brokers make no task
// late if the consumers use the database's clock.
func (w *world) mostLateTask() time.Duration {
	if w.sc.agree() {
		return w.mostLate() - w.sc.apart()
	}
	return w.mostLate()
}

// checkMessage checks the outcome of a message in each queue.
func (w *world) checkMessage(i item) {
	var e *event
	for _, x := range w.events {
		if x.id == i.ID {
			e = x
		}
	}
	if e == nil {
		return // the process that should have sent it was not running
	}
	if i.Dest == nowhere && e.err == nil {
		w.violationf("message %s to an exchange that does not exist was sent, want an error", i.ID)
	}
	due := e.at
	if e.due.After(e.at) {
		due = e.due
	}
	for _, r := range w.runsOf(i.ID, "") {
		if r.at.UnixMilli() < due.UnixMilli()-w.slack() {
			w.violationf("message %s was handled in %s %v before it was due", i.ID, r.queue, due.Sub(r.at))
		}
	}
	for _, q := range subscribers[i.Dest] {
		runs := w.runsOf(i.ID, q)
		n := effects(runs)
		switch {
		case e.err != nil && !e.maybe && len(runs) > 0:
			w.violationf("message %s was not sent (%v), but it was handled in %s", i.ID, e.err, q)
		case e.err == nil && n == 0 && !w.sc.mayDie(i) && !w.sc.has("wipe"):
			w.violationf("message %s was sent but had no effect in %s: %d runs, %s", i.ID, q, len(runs), w.history([]*event{e}))
		case e.err == nil && n == 0 && i.mayDie() && !w.sc.mayDie(item{Dest: i.Dest}) && len(runs) == 0 && !w.sc.has("wipe"):
			w.violationf("message %s was sent but never handled in %s", i.ID, q)
		case n > 1 && (strings.HasSuffix(q, idemQueue) || w.sc.calm()):
			w.violationf("message %s had %d effects in %s, want 1", i.ID, n, q)
		}
		if e.err != nil {
			continue
		}
		w.checkOverdue(i, runs, due)
		if w.sc.calm() && len(w.requeues) == 0 {
			w.checkCalmMessage(i, q, runs, later(due, e.back))
		}
	}
}

// checkCalmMessage checks additional requirements for messages in scenarios without faults.
func (w *world) checkCalmMessage(i item, queue string, runs []*run, due time.Time) {
	want := 1
	switch {
	case i.How == rejects:
	case i.How == snoozes:
		want = i.Times + 1
	case i.How != never:
		want = min(i.Times+1, maxAttempts)
	}
	w.checkWaits(i.ID)
	switch {
	case i.Slow > 0 && w.sc.has("stop consumers", "change layout"): // stopping the consumers may interrupt the handler
	case w.sc.Group > 1 && strings.HasSuffix(queue, idemQueue): // a message that fails in a group runs again alone
	case len(runs) != want:
		w.violationf("the handler of message %s in %s ran %d times without faults, want %d", i.ID, queue, len(runs), want)
		return
	}
	most := w.mostLate()
	if queue == plainQueue && w.held(due, i.made) {
		most = 100*time.Millisecond + 10*w.sc.Latency
		if w.sc.has(handBack) {
			most += 2 * time.Second
		}
	}
	if late := runs[0].at.Sub(due); w.undelayed() && late > most {
		w.violationf("message %s was handled in %s %v late without faults, want at most %v", i.ID, queue, late, most)
	}
}

// checkOverdue checks that a message that was overdue when its consumers started was handled without a further wait.
func (w *world) checkOverdue(i item, runs []*run, due time.Time) {
	stop, alone := w.sc.away(i)
	back, began := w.backs[stop]
	if !i.overdue || !alone || !began || len(runs) == 0 || !w.unhindered() {
		return
	}
	if late := runs[0].at.Sub(later(due, back)); late > time.Second+20*w.sc.Latency {
		w.violationf("message %s was overdue when its consumers started, and was handled only %v later", i.ID, late)
	}
}

// unhindered reports whether slow handlers do not delay plain messages that are overdue when their consumers start.
func (w *world) unhindered() bool {
	slow := 0
	for _, i := range w.sc.Items {
		if i.Slow > 0 && i.Dest == plainQueue {
			slow++
		}
	}
	places := 8
	if w.sc.Own {
		places = 1
	}
	return slow < places
}

// slack returns the number of milliseconds by which a message may be early. Clocks that differ by less than 2 s count
// as correct.
func (w *world) slack() int64 {
	if w.sc.apart() > 0 {
		return slack + 2000
	}
	return slack
}

// held reports whether a message is held by its consumer until the given due time, provided that there are enough
// slots.
func (w *world) held(due time.Time, made time.Duration) bool {
	slow := 0
	for _, i := range w.sc.Items {
		if i.Slow > 0 && i.Dest == plainQueue {
			slow++
		}
	}
	return w.sc.Lead >= 10*time.Second && w.sc.apart() == 0 && due.Sub(w.epoch.Add(made)) > 2*w.sc.Lead && slow < 8
}

// checkCooldowns checks that no task was accepted during the cooldown of its key.
func (w *world) checkCooldowns(rows map[string]schedule.TaskRow) {
	for _, e := range w.events {
		if e.cool == 0 || e.err != nil || e.what == string(schedule.UniqueRefused) {
			continue
		}
		for _, i := range w.sc.Items {
			row := rows[i.ID]
			if i.Key == "" || i.Key != w.sc.Items[e.id].Key || row.Status != schedule.StatusDone || !row.FinishedAt.Add(e.cool).After(e.back.Add(time.Millisecond)) {
				continue
			}
			for _, r := range w.runsOf(i.ID, "") {
				if r.took && r.ret != 0 && r.ret < e.call {
					w.violationf("task %s was %s at %v, want it refused, because %s was done and its key had a cooldown of %v", e.id, e.what, e.at.Sub(w.epoch), i.ID, e.cool)
				}
			}
		}
	}
}

// checkRateLimit checks that the intervals between sent tasks are not shorter than their queue's rate limit allows.
func (w *world) checkRateLimit() {
	if !w.sc.RateLimit || w.sc.has("requeue") {
		return
	}
	var dues []int64
	for s := range w.slots {
		dues = append(dues, s.due)
	}
	slices.Sort(dues)
	for n := 1; n < len(dues); n++ {
		if d := dues[n] - dues[n-1]; d < int64(1000/perSecond)-2 {
			w.violationf("two tasks for %s were %d ms apart at %v, want at least %d ms", taskQueue, d, time.UnixMilli(dues[n]).Sub(w.epoch), int64(1000/perSecond)-2)
		}
	}
}

// checkRecurring checks that the occurrences of the recurring task match its interval.
func (w *world) checkRecurring(rows map[string]schedule.TaskRow) {
	if w.sc.Every == 0 {
		return
	}
	seen := map[string]bool{}
	for at := w.first; at.Before(w.withdrew.at); at = at.Add(w.sc.Every) {
		var id string
		for x := range rows {
			if _, instant, ok := schedule.ParseOccurrence(x); ok && w.fromDB(instant).Equal(at) {
				id = x
			}
		}
		seen[id] = true
		n := effects(w.runsOf(id, ""))
		all := (w.sc.Misfire == schedule.MisfireAll || w.sc.calm() && !w.sc.slow()) && !w.sc.mayDie(item{Dest: taskQueue, Task: true})
		if n > 1 || n == 0 && all {
			w.violationf("the occurrence at %v had %d effects, want 1 (row %q: %s, %s)", at.Sub(w.epoch), n, id, rows[id].Status, rows[id].LastError)
		}
	}
	for id, row := range rows {
		if _, at, ok := schedule.ParseOccurrence(id); ok && !seen[id] && w.fromDB(at).Before(w.withdrew.at) {
			w.violationf("task %s (%s) is not a valid occurrence", id, row.Status)
		}
	}
	for _, r := range w.runs {
		_, at, ok := schedule.ParseOccurrence(r.id)
		at = w.fromDB(at)
		if ok && r.took && r.at.Before(at.Add(-slack*time.Millisecond)) {
			w.violationf("occurrence %s had its effect %v early", r.id, at.Sub(r.at))
		}
		if late := r.at.Sub(at); ok && r.took && w.sc.calm() && w.undelayed() && late > w.mostLateTask() {
			w.violationf("occurrence %s had its effect %v late without faults, want at most %v", r.id, late, w.mostLateTask())
		}
	}
}

// checkCounts compares the store's counts with its rows.
func (w *world) checkCounts(rows map[string]schedule.TaskRow) {
	counts, err := w.procs[0].store.Count(context.Background(), schedule.NoTx, schedule.Filter{})
	if err != nil {
		w.violationf("count: %v", err)
	}
	want := map[schedule.QueueCount]int64{}
	for _, t := range rows {
		want[schedule.QueueCount{Queue: t.Queue, Status: t.Status}]++
	}
	for _, c := range counts {
		key := schedule.QueueCount{Queue: c.Queue, Status: c.Status}
		if want[key] != c.Count {
			w.violationf("Count returned %d tasks for %q with status %s, want %d", c.Count, c.Queue, c.Status, want[key])
		}
		delete(want, key)
	}
	if len(want) > 0 {
		w.violationf("Count did not return %v, want these counts too", want)
	}
}

// checkBroker checks that only expected dead letters are left in the broker's queues.
func (w *world) checkBroker(rows map[string]schedule.TaskRow) {
	dead := map[string]int{}
	for _, name := range w.srv.Queues() {
		q, _ := w.srv.Queue(name)
		if strings.HasPrefix(name, "delay.lock") || strings.HasPrefix(name, "delay.canary") {
			w.violationf("queue %s is left, want it deleted", name)
		}
		if q.Unacked+q.DeadLetters+q.Delayed > 0 || q.Ready > 0 && !strings.HasSuffix(name, ".dead") {
			w.violationf("queue %s is left with %d ready, %d unacknowledged and %d delayed messages and %d dead letters, want 0",
				name, q.Ready, q.Unacked, q.Delayed, q.DeadLetters)
			continue
		}
		for _, m := range q.Messages {
			i, ok := w.itemOf(m.MessageId)
			queue := strings.TrimSuffix(name, ".dead")
			reason, _ := m.Headers[amqpx.HeaderReason].(string)
			text, _ := m.Headers[amqpx.HeaderError].(string)
			dead[queue+" "+m.MessageId]++
			switch {
			case !ok || !w.sc.mayDie(i) || !slices.Contains(subscribers[i.Dest], queue):
				w.violationf("dead letter %s is in %s (%s: %s), want it handled", m.MessageId, name, reason, text)
			case w.sc.mayDie(item{Dest: i.Dest, Task: i.Task}): // items of this destination may die for any reason
			case reason != map[bool]string{true: "rejected", false: "attempts"}[i.How == rejects] || !strings.Contains(text, "by the scenario"):
				w.violationf("dead letter %s in %s has the reason %q and the error %q, want those of its handler", m.MessageId, name, reason, text)
			}
		}
	}
	for _, e := range w.events {
		i := w.sc.Items[e.id]
		for _, q := range subscribers[i.Dest] {
			if !i.Task && e.err == nil && effects(w.runsOf(i.ID, q)) == 0 && dead[q+" "+i.ID] == 0 && !w.sc.has("wipe") {
				w.violationf("message %s was sent, but had no effect in %s and is not a dead letter", i.ID, q)
			}
			sent := !i.Task && e.err == nil || i.Task && rows[i.ID].Status == schedule.StatusFailed
			died := i.mayDie() && !w.sc.mayDie(item{Dest: i.Dest, Task: i.Task}) && sent && !w.sc.has("wipe") &&
				effects(w.runsOf(i.ID, q)) == 0
			if n := dead[q+" "+i.ID]; died && (n == 0 || n > 1 && w.sc.calm() && !i.Task) {
				w.violationf("%s was dead-lettered and is in %s.dead %d times, want once", i.ID, q, n)
			}
		}
	}
}

// checkProcesses checks that every process is healthy and holds no messages.
func (w *world) checkProcesses() {
	names := map[string]bool{}
	for _, c := range w.srv.Connections() {
		if names[c.Name] {
			w.violationf("connection %q is open more than once, want once", c.Name)
		}
		names[c.Name] = true
	}
	for _, p := range w.procs {
		if err := p.client.Health(); err != nil && (w.sc.apart() == 0 || !strings.Contains(err.Error(), "clock: behind")) {
			w.violationf("%s: %v", p.name, err)
		}
		if err := p.store.Health(); p.relays && err != nil {
			w.violationf("%s: relay: %v", p.name, err)
		}
		st := p.client.Stats()
		if st.Sending+st.InFlight+len(st.Stuck) > 0 {
			w.violationf("%s is still sending: %+v, want no messages in flight", p.name, st)
		}
		for _, c := range st.Consumers {
			if c.Returned > 0 && w.sc.calm() && w.sc.Ahead == 0 && w.sc.apart() == 0 {
				w.violationf("%s has sent back %d messages without faults, want 0", p.name, c.Returned)
			}
			if c.Running+c.Held+c.Waiting+c.Settling > 0 {
				w.violationf("a consumer of %s still has messages: %+v, want none", p.name, c)
			}
		}
	}
}
