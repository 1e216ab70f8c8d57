package page

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Texts of users who try to inject markup.
const (
	scriptTag = `<script>alert(1)</script>`
	override  = "invoice\u202egpj.exe"
)

var longID = strings.Repeat("0123456789abcdef-", 15)

// fake is an in-memory service with data of every kind. It does not check permissions, so its recorded calls show which
// requests the pages allow.
type fake struct {
	mu    sync.Mutex
	now   time.Time
	tasks map[string]schedule.TaskRow
	rec   map[string]schedule.Recurring
	jobs  map[string]service.Job
	audit []service.Entry
	calls []string // the calls that would change something
	err   error    // returned by every method, if set
	calm  bool     // nothing is wrong
}

func newFake(now time.Time) *fake {
	f := &fake{now: now, tasks: map[string]schedule.TaskRow{}, rec: map[string]schedule.Recurring{}, jobs: map[string]service.Job{}}
	queues := []string{"orders.expire", "mail", "posts.publish", "billing.retry"}
	for i := range 240 {
		due := now.Add(time.Duration(i*i*97) * time.Second)
		t := schedule.TaskRow{
			Task: schedule.Task{
				ID: fmt.Sprintf("order-%d-expire", 10_000+i*7), Queue: queues[i%len(queues)], DeliverAt: due,
				Body: []byte(`{"order": 42}`), ContentType: "application/json", Tags: []string{"tenant-7"},
			},
			Version: int64(1 + i%3), Status: schedule.StatusPending, CreatedAt: now.Add(-3 * time.Hour),
			UpdatedAt: now.Add(-time.Hour),
		}
		if i%9 == 5 {
			t.Status, t.FinishedAt, t.Attempts, t.LastError = schedule.StatusFailed, now.Add(-20*time.Minute), 5, "smtp: 451 4.3.2 system not accepting network messages"
			t.DeliverAt = now.Add(-time.Duration(i) * time.Minute)
		}
		if i%11 == 3 {
			t.Status, t.FinishedAt = schedule.StatusDone, now.Add(-time.Duration(i)*time.Minute)
			t.DeliverAt = t.FinishedAt.Add(-30 * time.Millisecond)
		}
		f.tasks[t.ID] = t
	}
	hostile := schedule.TaskRow{
		Task: schedule.Task{
			DeliverAt: now.Add(time.Minute), Queue: scriptTag, Tags: []string{scriptTag},
			Headers: map[string]string{scriptTag: override}, Body: []byte(scriptTag), Type: scriptTag,
			CorrelationID: override,
		},
		Status: schedule.StatusPending, Version: 2, CreatedAt: now.Add(-time.Hour), UpdatedAt: now.Add(-time.Minute),
		SentAt: now.Add(-time.Minute), Sends: 2, Attempts: 3, LastError: scriptTag + override,
	}
	for _, id := range []string{scriptTag, override, longID, "a/b?c=d&e#f/../g", `"onmouseover="alert(1)`} {
		hostile.ID = id
		f.tasks[id] = hostile
	}
	binary := hostile
	binary.ID, binary.Queue, binary.LastError, binary.Body = "binary", "mail", "", []byte{0, 1, 2, 0xff, 0xfe, '<', 's', '>'}
	f.tasks[binary.ID] = binary
	empty := schedule.TaskRow{
		Task:   schedule.Task{ID: "empty", Exchange: "events", RoutingKey: "order.late", DeliverAt: now.Add(48 * time.Hour)},
		Status: schedule.StatusPending, Version: 1, CreatedAt: now, UpdatedAt: now,
	}
	f.tasks[empty.ID] = empty
	for _, r := range []schedule.Recurring{
		{Name: "nightly-report", Cron: "30 2 * * *", TimeZone: "Europe/Berlin", Task: schedule.Task{Queue: "reports", Body: []byte(`{"kind":"daily"}`)}},
		{Name: "heartbeat", Every: 15 * time.Minute, Task: schedule.Task{Queue: "monitoring"}, Paused: true},
		{Name: scriptTag, Cron: "@hourly", TimeZone: "UTC", Task: schedule.Task{Queue: "mail"}, LastError: scriptTag},
	} {
		r.Misfire, r.MisfireLimit, r.Overlap, r.Version = schedule.MisfireOnce, 100, schedule.OverlapAllow, 3
		r.CreatedAt, r.UpdatedAt = now.Add(-1000*time.Hour), now.Add(-time.Hour)
		f.rec[r.Name] = r
	}
	entries := []service.Entry{
		{Who: "anna", Action: "bulk.reschedule", Detail: "status pending, queue mail, to 2026-11-23T08:00:00Z"},
		{Who: "ben", Action: "task.cancel", Target: "order-10007-expire"},
		{Who: "anna", Action: "recurring.pause", Target: "heartbeat"},
		{Who: scriptTag, Action: "task.run", Target: scriptTag, Detail: override, Error: scriptTag},
		{Who: "ben", Action: "requeue", Target: "mail.dead", Detail: "reason retries, at most 12"},
	}
	for i, e := range entries {
		e.ID, e.At = fmt.Sprint(100-i), now.Add(-time.Duration(i*i)*7*time.Minute)
		f.audit = append(f.audit, e)
	}
	f.jobs["running"] = service.Job{ID: "running", Entry: entries[0], State: service.JobRunning, Total: 120_000, Done: 48_500}
	f.jobs["done"] = service.Job{ID: "done", Entry: entries[4], State: service.JobDone, Total: 12, Done: 12, Result: "12 sent to mail", Finished: now}
	f.jobs["interrupted"] = service.Job{
		ID: "interrupted", Entry: entries[0], State: service.JobInterrupted, Total: 120_000, Done: 100,
		Result: "its process ended",
	}
	return f
}

func (f *fake) called(what string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, strings.TrimSpace(what+" "+strings.TrimSpace(fmt.Sprintln(args...))))
	return f.err
}

func (f *fake) Overview(context.Context, service.Identity) (service.Overview, error) {
	if f.err != nil {
		return service.Overview{}, f.err
	}
	count := func(n int64) status.Count { return status.Count{Ready: n, Leaving: new(int64), Unacked: new(int64)} }
	o := service.Overview{At: f.now.Add(-2 * time.Second)}
	o.Status.Broker = &status.Broker{Version: "4.3.0", Vhost: "/", Source: "management API"}
	delay := func(ttl time.Duration, n int64) status.Delay {
		return status.Delay{Queue: "delay.bucket." + topology.FormatDuration(ttl), TTL: status.Span(ttl), Latest: status.Span(2 * ttl), Waiting: count(n)}
	}
	l := status.Layout{Name: "delay.bucket", Queues: 283}
	for i := range 59 {
		l.Delays = append(l.Delays, delay(time.Duration(i+1)*time.Second, int64(40+30*math.Sin(float64(i)/7))))
		if i%2 == 0 {
			l.Delays = append(l.Delays, delay(time.Duration(i+1)*time.Minute, int64(900/(i+1))))
		}
	}
	for i := range 40 {
		l.Delays = append(l.Delays, delay(time.Duration(2*i+1)*10*time.Millisecond, int64(1+i%4)))
	}
	for i, n := range []int64{12_000, 8_400, 3_100, 900, 0, 450, 80, 20, 0, 0, 7_000} {
		l.Delays = append(l.Delays, delay(time.Duration(i+1)*time.Hour, n))
	}
	for i, n := range []int64{41_000, 22_000, 9_000, 4_000, 12_500, 600} {
		l.Delays = append(l.Delays, delay(time.Duration(i+1)*24*time.Hour, n))
	}
	l.Delays = append(l.Delays, delay(32*24*time.Hour, 310), delay(5*32*24*time.Hour, 12))
	for _, d := range l.Delays {
		l.Waiting.Ready += d.Waiting.Ready
	}
	o.Status.Layouts = []status.Layout{l}
	o.Status.Destinations = []status.Destination{
		{Name: "orders.expire", Queue: "orders.expire", Exists: true, Waiting: count(3), Consumers: new(int64(4)), Dead: &status.DeadLetters{Queue: "orders.expire.dead", Held: new(int64)}},
		{Name: "mail", Queue: "mail", Exists: true, Waiting: count(1204), Consumers: new(int64(2)), Dead: &status.DeadLetters{Queue: "mail.dead", Held: new(int64)}},
		{Name: "events:order.late", Queue: "delay.route.events:order.late", Exchange: true, Exists: true},
	}
	o.Status.Parked = status.DeadLetters{Queue: "delay.parked", Held: new(int64)}
	o.Status.Tasks = &status.Tasks{Counts: []status.TaskCount{
		{Queue: "mail", Status: schedule.StatusPending, Count: 1_104_233},
		{Queue: "orders.expire", Status: schedule.StatusPending, Count: 20_118},
		{Queue: "orders.expire", Status: schedule.StatusDone, Count: 9_120_004},
		{Queue: "mail", Status: schedule.StatusFailed, Count: 1_204},
	}}
	o.Status.Tasks.Relays = []taskview.Relay{
		{Name: "shop-1:4711", Version: "v1.0.0", Started: f.now.Add(-26 * time.Hour), Seen: f.now.Add(-4 * time.Second)},
		{Name: "shop-2:17", Version: "v1.0.0", Started: f.now.Add(-50 * time.Hour), Seen: f.now.Add(-7 * time.Hour)},
	}
	o.Status.Clients = []status.Client{{Name: "rabbitdelay serve", Connections: 2}, {Name: "shop", Connections: 12}, {Name: "mailer", Connections: 4}}
	for i, h := range []struct {
		name  string
		until time.Duration
		n     int64
	}{
		{"overdue", 0, 0}, {"1m", time.Minute, 412}, {"1h", time.Hour, 18_204}, {"1d", 24 * time.Hour, 310_442},
		{"7d", 7 * 24 * time.Hour, 402_001}, {"30d", 30 * 24 * time.Hour, 210_555},
		{"later", 9000 * 24 * time.Hour, 182_737},
	} {
		if i == 0 && !f.calm {
			h.n = 126
		}
		o.Horizon = append(o.Horizon, service.HorizonCount{Name: h.name, Until: f.now.Add(h.until), Count: h.n})
	}
	o.History = endedBefore(o.At)
	o.Ended = &service.Ended{Done: 10_000, Failed: 0, FailedBefore: 3, FailedDay: 27, Retried: 4}
	o.Rates = &service.Rates{In: 412.4, Out: 398.1}
	o.Alarms = []string{}
	if f.calm {
		return o, nil
	}
	oldest := f.now.Add(-40 * time.Minute)
	o.Status.Destinations[1].Consumers = new(int64)
	o.Status.Destinations[1].Dead = &status.DeadLetters{Queue: "mail.dead", Messages: 12, Sampled: 12, Oldest: &oldest, Groups: []status.Group{
		{Destination: "mail", Reason: "retries", Messages: 9, Error: "smtp: 451 4.3.2 system not accepting network messages"},
		{Destination: "mail", Reason: "rejected", Messages: 3, Error: scriptTag},
	}}
	o.Status.Parked = status.DeadLetters{
		Queue: "delay.parked", Messages: 2, Sampled: 2, Oldest: &oldest,
		Groups: []status.Group{{Destination: "sms", Reason: "parked", Messages: 2}},
	}
	o.Status.Layouts = append(o.Status.Layouts,
		status.Layout{Name: "delay.bucket.clock-100ms", Earlier: true, Queues: 193},
		status.Layout{Name: "delay.bucket.hex-classic", Earlier: true, Queues: 112, Waiting: count(17), Delays: []status.Delay{delay(time.Hour, 17)}})
	o.Status.Tasks.Overdue = &status.Overdue{ID: scriptTag, Destination: "mail", Due: f.now.Add(-4 * time.Minute), Sent: true, LastError: override}
	o.Status.Tasks.Unhandled = 126
	o.Status.Findings = []doctor.Finding{
		{
			ID: "policy-message-ttl", Severity: doctor.SeverityCritical,
			What: "policy ttl-all sets message-ttl 60000 on 283 delay queues",
			Why:  "The broker takes the smaller TTL: messages come early.",
			Fix:  "rabbitmqctl clear_policy -p / ttl-all",
		},
		{
			ID: "single-node-queue", Severity: doctor.SeverityWarning, What: "283 quorum queues have one member",
			Why: "A node that is lost takes them along.", Fix: "rabbitmq-queues grow rabbit@node2 all",
		},
	}
	o.Status.Notes = []string{"dead-letter queues were looked into: their messages have the redelivered flag now"}
	return o, nil
}

// endedBefore returns the history of a week with many completed tasks, a bad hour and a few minutes without tasks.
func endedBefore(now time.Time) (h service.History) {
	for _, p := range periods {
		list := []taskview.CompletionStats{}
		for i := range p.n {
			if i > p.n/3 && i < p.n/3+4 {
				continue
			}
			from := now.Truncate(p.Width).Add(time.Duration(i+1-p.n) * p.Width)
			e := taskview.CompletionStats{From: from, To: from.Add(p.Width), Late: make([]int64, 30)}
			for class := range 20 {
				e.Late[class] = int64(p.Width.Minutes() * 300 * math.Exp(-math.Pow(float64(class)-5-2*math.Sin(float64(i)/5), 2)/3))
				e.Done += e.Late[class]
			}
			if i == p.n*3/4 {
				e.Late[20], e.Done, e.Failed, e.Retries = e.Done/50, e.Done+e.Done/50, e.Done/9, e.Done/2
			}
			list = append(list, e)
		}
		switch p.Name {
		case "hour":
			h.Hour = list
		case "day":
			h.Day = list
		case "week":
			h.Week = list
		}
	}
	return h
}

func (f *fake) Watch(ctx context.Context, _ service.Identity, each func(service.Overview) error) error {
	for {
		o, err := f.Overview(ctx, service.Identity{})
		if err != nil {
			return err
		}
		if err := each(o); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Second):
		}
	}
}

func (f *fake) Histogram(_ context.Context, _ schedule.Filter, from, to time.Time, n int) (service.Histogram, error) {
	if f.err != nil {
		return service.Histogram{}, f.err
	}
	h := service.Histogram{From: from, To: to}
	if from.IsZero() {
		h.From, h.To = f.now.Add(-5*time.Minute), f.now.Add(365*24*time.Hour)
	}
	at := h.From
	if from.IsZero() { // the widths grow as in the service's own histogram
		for i, hours := range []float64{0, 1. / 60, 5. / 60, 0.25, 0.5, 1, 2, 4, 8, 16, 24, 48, 96, 168, 336, 720, 1440, 2880, 5760, 8784} {
			b := taskview.HistogramBucket{From: at, To: f.now.Add(time.Duration(hours * float64(time.Hour)))}
			b.Count = int64(4000 * b.To.Sub(b.From).Hours() / (1 + math.Pow(hours/30, 1.5)) * (1.2 + math.Sin(float64(i)*1.7)))
			if i == 0 && !f.calm {
				b.Count = 126
			}
			h.Bins = append(h.Bins, b)
			at = b.To
		}
		return h, nil
	}
	for i := range n {
		next := h.From.Add(h.To.Sub(h.From) * time.Duration(i+1) / time.Duration(n))
		c := int64(30_000 * math.Exp(-math.Pow(float64(i)-30, 2)/90) * (1.2 + math.Sin(float64(i)*1.7)))
		h.Bins = append(h.Bins, taskview.HistogramBucket{From: at, To: next, Count: c})
		at = next
	}
	return h, nil
}

func (f *fake) RetirePlan(context.Context) (service.RetirePlan, error) {
	return service.RetirePlan{Text: "- delete queue delay.bucket.clock-100ms.1s\n- delete exchange delay.bucket.clock-100ms.1s\n193 queues, 199 exchanges"}, f.err
}

func (f *fake) Retire(context.Context, service.Identity) (service.Job, error) {
	return f.jobs["done"], f.called("retire")
}

func (f *fake) Tasks(_ context.Context, _ service.Identity, x schedule.Filter) (service.TaskPage, error) {
	if f.err != nil {
		return service.TaskPage{}, f.err
	}
	var p service.TaskPage
	before := x.After != ""
	for _, t := range f.chosen(x) {
		if before {
			before = x.CursorOf(t) != x.After
			continue
		}
		if len(p.Tasks) == x.Limit {
			p.Next = x.CursorOf(p.Tasks[len(p.Tasks)-1])
			break
		}
		t.Body = nil
		p.Tasks = append(p.Tasks, t)
	}
	return p, nil
}

func (f *fake) Suggest(context.Context) (service.Suggestions, error) {
	return service.Suggestions{Queues: []string{"mail", "orders.expire", scriptTag}, Tags: []string{"tenant-7", scriptTag}}, f.err
}

func (f *fake) LastRuns(_ context.Context, names []string) (map[string]schedule.TaskRow, error) {
	runs := map[string]schedule.TaskRow{}
	for _, name := range names {
		switch name {
		case "nightly-report":
			due := f.now.Add(-9 * time.Hour)
			runs[name] = schedule.TaskRow{
				Task: schedule.Task{ID: name + "@20261122T013000Z", DeliverAt: due}, Status: schedule.StatusDone,
				FinishedAt: due.Add(14 * time.Millisecond),
			}
		case scriptTag:
			runs[name] = schedule.TaskRow{
				Task: schedule.Task{ID: name + "@20261122T013000Z", DeliverAt: f.now}, Status: schedule.StatusFailed,
				FinishedAt: f.now, LastError: strings.Repeat(scriptTag, 100),
			}
		}
	}
	return runs, f.err
}

func (f *fake) chosen(x schedule.Filter) []schedule.TaskRow {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []schedule.TaskRow
	for _, t := range f.tasks {
		switch {
		case x.Queue != "" && t.Queue != x.Queue, x.Exchange != "" && t.Exchange != x.Exchange,
			x.Status != "" && t.Status != x.Status,
			!strings.HasPrefix(t.ID, x.IDPrefix), len(x.IDs) > 0 && !slices.Contains(x.IDs, t.ID),
			x.Tag != "" && !slices.Contains(t.Tags, x.Tag),
			!x.DueFrom.IsZero() && t.DeliverAt.Before(x.DueFrom), !x.DueTo.IsZero() && !t.DeliverAt.Before(x.DueTo):
			continue
		}
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b schedule.TaskRow) int {
		if c := a.DeliverAt.Compare(b.DeliverAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

func (f *fake) Count(_ context.Context, x schedule.Filter, limit int64) (int64, bool, error) {
	n := int64(len(f.chosen(x)))
	return min(n, limit), n > limit, f.err
}

// Task returns the body to every role, because the tests check that pages hide it.
func (f *fake) Task(_ context.Context, _ service.Identity, id string) (service.TaskDetail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.tasks[id]
	switch {
	case f.err != nil:
		return service.TaskDetail{}, f.err
	case !ok:
		return service.TaskDetail{}, fmt.Errorf("task %s: %w", id, schedule.ErrNotFound)
	}
	d := service.TaskDetail{Task: t, Why: "It is pending and waits for its due time.", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"}
	if t.Status == schedule.StatusFailed {
		d.Why = "It failed after 5 attempts: " + t.LastError
	}
	d.Trace = trace.Trace{ID: id, At: f.now, Task: &d.Task, TasksKnown: true}
	d.Effects = []taskview.Effect{{Version: 1, Queue: "mail", DoneAt: f.now.Add(-30 * time.Minute)}}
	d.Audit = []service.Entry{{
		ID: "1", At: f.now.Add(-50 * time.Minute), Who: "anna", Action: "task.reschedule", Target: id,
		Detail: "to " + f.now.Add(time.Hour).Format(time.RFC3339),
	}}
	return d, nil
}

func (f *fake) Trace(ctx context.Context, who service.Identity, id string) (trace.Trace, error) {
	if f.err != nil {
		return trace.Trace{}, f.err
	}
	t := trace.Trace{ID: id, At: f.now, TasksKnown: true, RecordsKnown: true, Scopes: []string{"mail", scriptTag}}
	t.Searched = []trace.Searched{{Queue: "mail.dead", Sampled: 12, Messages: 12}, {Queue: "delay.parked", Sampled: 1000, Messages: 4200}}
	t.Waiting = []status.Delay{{Queue: "delay.bucket.1h", Waiting: status.Count{Ready: 12_000}}, {Queue: "delay.bucket.2h", Waiting: status.Count{Ready: 8400}}}
	switch d, err := f.Task(ctx, who, id); {
	case err == nil:
		t.Task, t.Effects = &d.Task, d.Effects
		t.Records = []idempotency.Record{{Scope: scriptTag, ProcessedAt: f.now.Add(-time.Minute)}, {Scope: "mail", ProcessedAt: f.now, Guarded: true}}
	case strings.HasPrefix(id, "dead"):
		p, _ := f.Peek(ctx, who, "mail.dead", 1)
		t.DeadLetters = p.Messages
	default:
		t.Unchecked = []doctor.Unchecked{{Area: status.AreaBroker, Why: scriptTag}}
	}
	t.Why = t.Explain()
	return t, nil
}

func (f *fake) Schedule(_ context.Context, who service.Identity, tasks []service.NewTask) ([]service.ScheduleResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []service.ScheduleResult
	for _, t := range tasks {
		f.calls = append(f.calls, fmt.Sprintf("schedule %s for %s at %s: %s", t.ID, who.Name, t.DeliverAt.UTC().Format(time.RFC3339), t.Body))
		_, there := f.tasks[t.ID]
		if t.Queue == "" && t.Exchange == "" {
			list = append(list, service.ScheduleResult{ID: t.ID, Err: &schedule.TaskError{ID: t.ID, Field: "Queue", Reason: "no destination"}})
			continue
		}
		f.tasks[t.ID] = schedule.TaskRow{Task: t.Task, Status: schedule.StatusPending, Version: 1, CreatedAt: f.now, UpdatedAt: f.now}
		list = append(list, service.ScheduleResult{ID: t.ID, Created: !there})
	}
	return list, f.err
}

func (f *fake) set(action, id string, from, to schedule.Status, at time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, action+" "+id)
	t, ok := f.tasks[id]
	switch {
	case f.err != nil:
		return f.err
	case !ok:
		return fmt.Errorf("task %s: %w", id, schedule.ErrNotFound)
	case t.Status != from:
		return &schedule.StatusError{ID: id, Action: action, Status: t.Status, Want: from}
	}
	t.Status, t.Version = to, t.Version+1
	if !at.IsZero() {
		t.DeliverAt = at
	}
	f.tasks[id] = t
	return nil
}

func (f *fake) Change(_ context.Context, _ service.Identity, id string, a change.Action) (t schedule.TaskRow, err error) {
	switch a.Kind {
	case change.Cancel:
		return t, f.set("cancel", id, schedule.StatusPending, schedule.StatusCancelled, time.Time{})
	case change.Reschedule:
		return t, f.set("reschedule", id, schedule.StatusPending, schedule.StatusPending, a.At)
	case change.RunNow:
		return t, f.set("run", id, schedule.StatusPending, schedule.StatusPending, f.now)
	case change.Revive:
		return t, f.set("revive", id, schedule.StatusFailed, schedule.StatusPending, a.At)
	}
	return t, fmt.Errorf("the pages do not %s one task", a.Kind)
}

func (f *fake) TaskErrors(_ context.Context, _ service.Identity, _ schedule.Filter, _ taskview.ErrorGroupOptions) (taskview.ErrorGroups, error) {
	groups := []taskview.ErrorGroup{
		{Queue: "mail", ErrorLike: "payment provider: #", Tasks: 2, ExampleID: "a1", Example: "payment provider: 503"},
		{Exchange: "e", Tasks: 1, ExampleID: "b1"},
	}
	return taskview.ErrorGroups{Sampled: 3, More: true, Groups: groups, Others: 4}, f.err
}

func (f *fake) BulkCount(_ context.Context, x schedule.Filter, _ change.Action) (int64, error) {
	return int64(len(f.chosen(x))), f.err
}

func (f *fake) Bulk(_ context.Context, _ service.Identity, x schedule.Filter, a change.Action, count int64) (service.Job, error) {
	what := "at " + a.At.UTC().Format(time.RFC3339)
	switch {
	case a.By != 0:
		what = "by " + a.By.String()
	case a.At.IsZero():
		what = "now"
	}
	return f.jobs["running"], f.called("bulk", a.Kind, count, strings.TrimSpace(x.Queue+" "+string(x.Status)), what, "over", a.Spread)
}

func (f *fake) Recurring(ctx context.Context, who service.Identity) ([]schedule.Recurring, error) {
	var list []schedule.Recurring
	for _, name := range []string{"heartbeat", "nightly-report", scriptTag} {
		t, err := f.RecurringTask(ctx, who, name)
		if err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, nil
}

func (f *fake) RecurringTask(_ context.Context, _ service.Identity, name string) (schedule.Recurring, error) {
	r, ok := f.rec[name]
	if f.err != nil {
		return schedule.Recurring{}, f.err
	}
	if !ok {
		return schedule.Recurring{}, fmt.Errorf("recurring task %s: %w", name, schedule.ErrNoSchedule)
	}
	return r, nil
}

func (f *fake) PutRecurring(_ context.Context, _ service.Identity, r schedule.Recurring) (schedule.Change, error) {
	if err := r.Validate(); err != nil {
		return "", err
	}
	r.Version = 1
	f.rec[r.Name] = r
	return schedule.Created, f.called("put", r.Name, r.Cron, r.Every)
}

func (f *fake) PauseRecurring(_ context.Context, _ service.Identity, name string) error {
	return f.called("pause", name)
}

func (f *fake) ResumeRecurring(_ context.Context, _ service.Identity, name string) error {
	return f.called("resume", name)
}

func (f *fake) RunRecurring(_ context.Context, _ service.Identity, name string) (string, error) {
	return "empty", f.called("run recurring", name)
}

func (f *fake) DeleteRecurring(_ context.Context, _ service.Identity, name string) error {
	return f.called("delete", name)
}

func (f *fake) Destinations(context.Context) ([]schedule.DestinationState, error) {
	return []schedule.DestinationState{
		{Queue: "mail", PausedAt: f.now.Add(-time.Hour), PausedBy: "anna", PerSecond: 100, Burst: 10, Waiting: 12_000},
		{Exchange: scriptTag, PausedAt: f.now.Add(-time.Hour), PausedBy: scriptTag},
		{Queue: "posts", SpreadUntil: f.now.Add(time.Hour), Waiting: taskview.MaxWaiting, Busy: true},
	}, f.err
}

func (f *fake) Destination(ctx context.Context, d topology.Destination) (schedule.DestinationState, error) {
	list, err := f.Destinations(ctx)
	for _, x := range list {
		if x.Destination() == d {
			return x, err
		}
	}
	return schedule.DestinationState{Queue: d.Queue, Exchange: d.Exchange}, err
}

func (f *fake) UnknownDestination(_ context.Context, d topology.Destination) (string, error) {
	if d.Queue == "mial" {
		return "no task, no recurring task and no destination has the name mial; did you mean mail?", f.err
	}
	return "", f.err
}

func (f *fake) PauseDestination(_ context.Context, _ service.Identity, d topology.Destination) error {
	return f.called("pause destination", d.Queue, d.Exchange)
}

func (f *fake) SetRateLimit(_ context.Context, _ service.Identity, x schedule.RateLimit) error {
	return f.called("rate-limit", x.Queue, x.Exchange)
}

func (f *fake) ResumeDestination(_ context.Context, _ service.Identity, d topology.Destination, spread time.Duration) error {
	return f.called("resume destination", d.Queue, d.Exchange, spread)
}

func (f *fake) Peek(_ context.Context, _ service.Identity, queue string, _ int) (inspect.Peeked, error) {
	dead := func(id, reason, err string, body []byte) inspect.DeadLetter {
		return inspect.DeadLetter{
			Delivery: &amqpx.Delivery{ID: id, Queue: queue, Body: body, DueAt: f.now.Add(-time.Hour), Version: 1},
			Reason:   reason, Error: err, Died: f.now.Add(-40 * time.Minute),
			Destination: topology.Destination{Queue: "mail"}, Attempts: []string{f.now.Add(-time.Hour).Format(time.RFC3339) + " " + err},
		}
	}
	return inspect.Peeked{Queue: queue, More: 9, Messages: []inspect.DeadLetter{
		dead("order-10007-expire", "retries", "smtp: 451 4.3.2 system not accepting network messages", []byte(`{"to":"a@example.org"}`)),
		dead(scriptTag, "rejected", override, []byte(scriptTag)), dead("", "", "", []byte{0, 255}),
	}, Notes: []string{"before RabbitMQ 4.0, a quorum queue puts the messages that were read at its end"}}, f.err
}

func (f *fake) ErrorGroups(_ context.Context, queue string, order deadletters.GroupOrder, _ int) (deadletters.ErrorGroups, error) {
	first, last := f.now.Add(-48*time.Hour), f.now.Add(-40*time.Minute)
	notes := []string{"ordered by " + string(order)}
	return deadletters.ErrorGroups{Queue: queue, Total: 100_012, Sampled: 100_000, Others: 3, AtLeast: true, Notes: notes, Groups: []deadletters.ErrorGroup{
		{
			Destination: "mail", Reason: "attempts", ErrorLike: "smtp: # system not accepting network messages",
			Messages: 99_990, First: &first, Last: &last, ExampleID: "order-10007-expire",
			Example: "smtp: 451 4.3.2 system not accepting network messages",
		},
		{Reason: "rejected", ErrorLike: override, Messages: 6, Last: &last, ExampleID: scriptTag, Example: scriptTag}, {Messages: 1},
	}}, f.err
}

func (f *fake) RequeueDryRun(context.Context, service.Identity, service.Requeue) (inspect.RequeueReport, error) {
	return inspect.RequeueReport{Total: 12, Examined: 12, Chosen: 12, Sent: 7, Revived: 3, Stayed: 2, Results: []inspect.RequeueResult{
		{Destination: "mail", Outcome: inspect.RequeueSent, Count: 7},
		{Destination: "mail", Outcome: inspect.RequeueRevived, Count: 3},
		{Destination: "sms", Outcome: inspect.RequeueStayed, Why: "the destination is gone", Count: 2},
	}}, f.err
}

func (f *fake) Requeue(_ context.Context, _ service.Identity, r service.Requeue) (service.Job, error) {
	return f.jobs["done"], f.called("requeue", r.Queue, r.Limit, r.Filter.Reasons, "rate", r.Rate, "to", r.To.String())
}

func (f *fake) Jobs(context.Context, service.Identity, int) ([]service.Job, error) {
	return []service.Job{f.jobs["running"], f.jobs["done"], f.jobs["interrupted"]}, f.err
}

func (f *fake) Job(_ context.Context, _ service.Identity, id string) (service.Job, error) {
	j, ok := f.jobs[id]
	return j, errors.Join(f.err, map[bool]error{false: service.ErrNoJob}[ok])
}

func (f *fake) StopJob(_ context.Context, _ service.Identity, id string) (service.Job, error) {
	return f.jobs[id], f.called("stop", id)
}

func (f *fake) ContinueJob(_ context.Context, _ service.Identity, id string) (service.Job, error) {
	return f.jobs[id], f.called("continue", id)
}

func (f *fake) AuditLongerThan(_ context.Context, target string, n int) (bool, error) {
	list, err := f.Audit(context.Background(), service.Identity{}, target, "", 0)
	return len(list) > n, err
}

func (f *fake) Audit(_ context.Context, _ service.Identity, target, _ string, _ int) ([]service.Entry, error) {
	if target == "" {
		return f.audit, f.err
	}
	return slices.DeleteFunc(slices.Clone(f.audit), func(e service.Entry) bool { return e.Target != target }), f.err
}
