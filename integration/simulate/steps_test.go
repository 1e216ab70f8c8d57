package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// call runs an operation, and records when it started and when it returned.
func (w *world) call(e *event, do func() error) *event {
	w.mu.Lock()
	e.call, e.at = w.next(), time.Now()
	w.mu.Unlock()
	err := do()
	w.mu.Lock()
	e.ret, e.back, e.err = w.next(), time.Now(), err
	w.mu.Unlock()
	w.logf("  %s %s: %v", e.what, e.id, err)
	return e
}

// note adds an operation to the history.
func (w *world) note(e event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, &e)
}

// definite reports whether an error means that a task was not changed.
func definite(err error) bool {
	return errors.Is(err, schedule.ErrExists) || errors.Is(err, schedule.ErrNotFound) || errors.Is(err, schedule.ErrStatus)
}

// operate runs step n of a scenario on a process.
func (w *world) operate(p *process, n int, s step) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	due := time.Now().Add(s.In)
	payload := func(id string) string { return fmt.Sprintf("%s of step %d", id, n) }
	one := func(id string, do func() error) {
		e := w.call(&event{what: s.What, id: id, due: due, by: s.In, payload: payload(id)}, do)
		e.maybe = e.err != nil && !definite(e.err)
		w.note(*e)
	}
	defer w.wake()
	switch s.What {
	case "send", "batch":
		w.send(ctx, p, s)
	case "schedule":
		w.schedule(ctx, p, s, payload)
	case "replace":
		t := w.task(s.IDs[0], w.sc.Items[s.IDs[0]].Dest, payload(s.IDs[0]))
		t.DeliverAt = w.toDB(due)
		if t.UniqueKey != "" {
			return // only ScheduleUnique accepts keys
		}
		t.Replace = true
		one(t.ID, func() error { return p.store.Schedule(ctx, schedule.NoTx, t) })
	case "unique":
		w.unique(ctx, p, s, payload(s.IDs[0]))
	case "cancel":
		one(s.IDs[0], func() error { return p.store.Cancel(ctx, schedule.NoTx, s.IDs[0]) })
	case "move":
		one(s.IDs[0], func() error { return p.store.Reschedule(ctx, schedule.NoTx, s.IDs[0], w.toDB(due)) })
	case "move by":
		one(s.IDs[0], func() error { return p.store.RescheduleBy(ctx, schedule.NoTx, s.IDs[0], s.In) })
	case "run":
		one(s.IDs[0], func() error { return p.store.RunNow(ctx, schedule.NoTx, s.IDs[0]) })
	case "bulk cancel", "bulk move":
		action := schedule.BulkCancel()
		if s.What == "bulk move" {
			action = schedule.BulkReschedule(w.toDB(due))
		}
		e := w.call(&event{what: s.What, due: due}, func() error {
			_, err := p.store.Bulk(ctx, schedule.Filter{IDs: s.IDs}, action, schedule.BulkOptions{Batch: 2})
			return err
		})
		e.maybe = e.err != nil
		for _, id := range unrepeated(s.IDs) {
			x := *e
			x.id = id
			w.note(x)
		}
	case "requeue":
		e := w.call(&event{what: s.What, id: s.Name}, func() error {
			_, err := inspect.Requeue(ctx, p.client, inspect.RequeueOptions{Queue: s.Name, Tasks: p.store})
			return err
		})
		w.mu.Lock()
		w.requeues = append(w.requeues, e)
		w.mu.Unlock()
	case "pause":
		dest := topology.Destination{Queue: s.Name}
		if exchange(s.Name) {
			dest = topology.Destination{Exchange: s.Name}
		}
		paused := w.call(&event{what: s.What, id: s.Name}, func() error { return p.store.Pause(ctx, schedule.NoTx, dest, "simulation") })
		if paused.err == nil {
			w.wake()
			<-after(s.For)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		resumed := w.call(&event{what: "resume", id: s.Name}, func() error { return p.store.Resume(ctx, schedule.NoTx, dest, s.In) }) // if this fails, settle resumes the destination later
		w.mu.Lock()
		w.gates = append(w.gates, paused, resumed)
		w.mu.Unlock()
	case handBack:
		w.handBack(s)
	case "stop consumers":
		var all sync.WaitGroup
		for k := range max(1, s.N) {
			x := p
			if s.N > 0 {
				x = w.process(k)
			}
			if x != nil {
				all.Go(func() { x.pause(s.For) })
			}
		}
		all.Wait()
		w.mu.Lock()
		w.backs[n] = time.Now()
		w.mu.Unlock()
	}
}

func unrepeated(ids []string) (list []string) {
	seen := map[string]bool{}
	for _, id := range ids {
		if !seen[id] {
			list = append(list, id)
		}
		seen[id] = true
	}
	return list
}

// send sends messages.
func (w *world) send(ctx context.Context, p *process, s step) {
	var msgs []amqpx.Message
	for _, id := range s.IDs {
		m := amqpx.Message{ID: id, Body: []byte("body of " + id), ContentType: "text/plain", CorrelationID: id, Headers: amqp.Table{"x-payload": id}}
		if dest := w.sc.Items[id].Dest; exchange(dest) {
			m.Exchange, m.RoutingKey = dest, "k"
		} else {
			m.Queue = dest
		}
		if m.Delay = s.In; s.Abs {
			m.Delay, m.DeliverAt = 0, p.now().Add(s.In) // by this process's clock
		}
		msgs = append(msgs, m)
	}
	due := time.Now().Add(s.In)
	if s.Abs && w.sc.sets(s.On, s.At, s.At+s.In) {
		due = time.Time{} // the process's clock determines the due time
	}
	e := w.call(&event{what: s.What, due: due}, func() error {
		if s.What == "send" {
			return p.client.Send(ctx, msgs[0])
		}
		return p.client.SendBatch(ctx, msgs)
	})
	batch, inParts := errors.AsType[*amqpx.BatchError](e.err)
	for i, m := range msgs {
		x := *e
		x.id = m.ID
		if inParts {
			x.err = nil
			if failed := batch.Failed[i]; failed != nil {
				x.err = failed
			}
		}
		x.maybe = errors.Is(x.err, amqpx.ErrOutcomeUnknown)
		w.note(x)
	}
}

// schedule schedules a step's tasks, all of them or none.
func (w *world) schedule(ctx context.Context, p *process, s step, payload func(string) string) {
	var list []schedule.Task
	for _, id := range s.IDs {
		t := w.task(id, w.sc.Items[id].Dest, payload(id))
		t.DeliverAt = w.toDB(time.Now().Add(s.In))
		list = append(list, t)
	}
	e := w.call(&event{what: s.What, due: time.Now().Add(s.In)}, func() error {
		if len(list) == 1 {
			return p.store.Schedule(ctx, schedule.NoTx, list[0])
		}
		return p.store.ScheduleBatch(ctx, schedule.NoTx, list)
	})
	e.maybe = e.err != nil && !definite(e.err)
	existing, exists := errors.AsType[*schedule.ExistsError](e.err)
	for _, t := range list {
		if exists && !slices.Contains(existing.IDs, t.ID) {
			continue
		}
		x := *e
		x.id, x.payload = t.ID, payload(t.ID)
		w.note(x)
	}
}

// unique schedules a task with a unique key. The recorded event belongs to the task that has the key afterwards, or
// possibly to any task if the outcome is unknown.
func (w *world) unique(ctx context.Context, p *process, s step, payload string) {
	i := w.sc.Items[s.IDs[0]]
	t := w.task(i.ID, i.Dest, payload)
	due := time.Now().Add(s.In)
	t.DeliverAt = w.toDB(due)
	u := schedule.Unique{OnConflict: schedule.ConflictPolicy(s.Name), Cooldown: s.Cool}
	if u.OnConflict == schedule.PushBackPending {
		u.MaxWait = s.For
	}
	var r schedule.UniqueResult
	e := w.call(&event{what: "unique " + s.Name, id: i.ID, due: due, asked: due, wait: u.MaxWait, cool: u.Cooldown, payload: payload}, func() (err error) {
		r, err = p.store.ScheduleUnique(ctx, schedule.NoTx, t, u)
		return err
	})
	if e.err == nil {
		e.what, e.id, e.due = string(r.Outcome), r.ID, w.fromDB(r.DueAt)
		w.note(*e)
		if r.Outcome == schedule.UniqueRefused && !w.fromDB(r.Until).After(e.at) {
			w.violationf("task %s was refused although the cooldown of %s ended at %v", i.ID, r.ID, w.fromDB(r.Until).Sub(w.epoch))
		}
		return
	}
	x := *e
	x.what, x.maybe = string(schedule.UniqueCreated), !definite(e.err)
	w.note(x)
	for _, id := range w.sortedIDs() {
		if x.maybe && id != i.ID && w.sc.Items[id].Key == i.Key && u.OnConflict != schedule.KeepPending {
			y := x
			y.id, y.what = id, map[schedule.ConflictPolicy]string{schedule.ReplacePending: "replaced", schedule.PushBackPending: "pushed-back"}[u.OnConflict]
			w.note(y)
		}
	}
}

// disturb injects a fault for a while.
func (w *world) disturb(s step) {
	undo := func() {}
	switch s.What {
	case "cut all":
		w.srv.CutConnections()
	case "cut at":
		undo = w.srv.CutAt(s.Name, s.N)
	case "silence":
		undo = w.srv.Silence(s.Name)
	case "alarm":
		undo = w.srv.Block("low on memory")
	case "nack":
		undo = w.nack(s.Name)
	case "deny":
		undo = w.srv.Deny("", amqptest.Permission(s.Name), "^(plain|task|delay.*)$")
	case "restart":
		undo = w.srv.RefuseConnections()
		w.srv.CloseConnections("broker restarts")
	case "refuse logins":
		undo = w.srv.RefuseLogins()
		w.srv.CutConnections()
	case "kill":
		w.mu.Lock()
		p := w.procs[s.On]
		w.procs[s.On] = nil
		w.mu.Unlock()
		if p != nil {
			p.kill()
			undo = func() { w.revive(s.On) }
		}
	case "stall":
		if p := w.process(s.On); p != nil {
			undo = p.stall()
		}
	case "db fails":
		undo = w.db.fail()
		before := w.db.asked()
		defer func() {
			if n := w.db.asked() - before; n > mostAsked(s.For, w.sc.processes()) {
				w.violationf("the database was queried %d times while it was unavailable for %v, want at most %d", n, s.For, mostAsked(s.For, w.sc.processes()))
			}
		}()
	case "db hangs":
		undo = w.db.hang()
	case "commits break":
		w.db.breakCommits(s.N, s.Name == "applied")
		undo = func() { w.db.breakCommits(0, false) }
	case "wipe":
		w.wipe()
	case jump:
		w.clocks[s.On].Add(int64(s.In))
		undo = func() { w.clocks[s.On].Add(-int64(s.In)) }
	}
	<-after(s.For)
	undo()
	w.logf("  %s is over", s.What)
}

// mostAsked returns the maximum number of queries that the processes may send while the database is unavailable, given
// that each handler and each part of a relay pauses between attempts.
func mostAsked(away time.Duration, processes int) int {
	return processes * (100 + 10*int(away/time.Second))
}

// nack makes the broker refuse messages to the named queue, or to all delay queues.
func (w *world) nack(name string) (undo func()) {
	if name != delays {
		return w.srv.Nack(name)
	}
	var undos []func()
	for _, x := range w.srv.Exchanges() {
		if strings.HasPrefix(x.Name, "delay.bucket.") || strings.HasPrefix(x.Name, "delay.native.") || strings.HasPrefix(x.Name, "delay.ttl.") {
			undos = append(undos, w.srv.Nack(x.Name))
		}
	}
	return func() {
		for _, undo := range undos {
			undo()
		}
	}
}

// changeLayout replaces the processes, one after another, by processes with the next layout.
func (w *world) changeLayout(pause time.Duration) {
	for n := range w.sc.processes() {
		w.mu.Lock()
		p := w.procs[n]
		w.procs[n] = nil
		w.changed[n] = true
		w.mu.Unlock()
		if p == nil {
			continue // the process was killed, and will start again with the next layout
		}
		if err := p.close(); err != nil && w.sc.calm() {
			w.violationf("closing %s: %v", p.name, err)
		}
		w.revive(n)
		<-after(pause)
	}
}

// wipe deletes the messages in the broker's queues.
func (w *world) wipe() {
	c, err := w.srv.Connect()
	if err != nil {
		return // the broker refuses connections
	}
	defer func() { _ = c.Close() }()
	for _, q := range w.srv.Queues() {
		ch, err := c.Channel()
		if err != nil {
			return
		}
		_, _ = ch.QueuePurge(q, false)
		_ = ch.Close()
	}
}

// handBack makes all consuming processes return the messages that they hold, several times.
func (w *world) handBack(s step) {
	for range s.N {
		w.mu.Lock()
		procs := slices.Clone(w.procs)
		w.mu.Unlock()
		for _, p := range procs {
			if p != nil && p.handles {
				_ = p.client.PauseConsuming(plainQueue, amqpx.PauseHandBack) // the only possible error is an unknown mode
			}
		}
		<-after(min(s.For/2, 20*time.Millisecond+4*w.sc.Latency))
		for _, p := range procs {
			if p != nil && p.handles {
				p.client.ResumeConsuming(plainQueue)
			}
		}
		<-after(s.For / 2)
	}
}
