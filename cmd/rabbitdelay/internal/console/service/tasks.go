package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// MaxPage is the maximum number of tasks on a page.
const MaxPage = 1000

// TaskPage is one page of tasks.
type TaskPage struct {
	Tasks []schedule.TaskRow
	Next  schedule.Cursor // empty on the last page
}

// Tasks returns at most f.Limit tasks without bodies, in the order of f.Sort, after f.After. As in other methods,
// viewers see only the names of most headers, and cannot filter by headers.
func (c *Core) Tasks(ctx context.Context, who Identity, f schedule.Filter) (TaskPage, error) {
	if f.Header != "" && !who.Role.May(RoleOperator) {
		return TaskPage{}, fmt.Errorf("filter by header: %w", ErrForbidden)
	}
	limit := f.Limit
	if err := within("limit", limit, MaxPage); err != nil {
		return TaskPage{}, err
	}
	f.Limit, f.WithoutBody = limit+1, true
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (TaskPage, error) {
		page := TaskPage{Tasks: []schedule.TaskRow{}}
		for t, err := range s.List(ctx, schedule.NoTx, f) {
			if err != nil {
				return TaskPage{}, err
			}
			if len(page.Tasks) == limit {
				page.Next = f.CursorOf(page.Tasks[limit-1])
				break
			}
			veilTask(who, &t.Task)
			page.Tasks = append(page.Tasks, t)
		}
		return page, nil
	})
}

// Count returns how many tasks f selects, up to limit. The result more reports whether there are more than that. A
// limit of zero counts all of them.
func (c *Core) Count(ctx context.Context, f schedule.Filter, limit int64) (n int64, more bool, err error) {
	n, err = readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (int64, error) {
		return s.CountUpTo(ctx, schedule.NoTx, f, limit)
	})
	if err != nil || limit <= 0 {
		return n, false, err
	}
	return min(n, limit), n > limit, nil
}

// TaskErrors groups the failed tasks that f selects by their errors.
func (c *Core) TaskErrors(ctx context.Context, who Identity, f schedule.Filter, o taskview.ErrorGroupOptions) (taskview.ErrorGroups, error) {
	if f.Header != "" && !who.Role.May(RoleOperator) {
		return taskview.ErrorGroups{}, fmt.Errorf("filter by header: %w", ErrForbidden)
	}
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (taskview.ErrorGroups, error) {
		return s.ErrorGroups(ctx, all(f), o)
	})
}

// Suggestions are the names that can be suggested for the fields of a filter without waiting for a query.
type Suggestions struct{ Queues, Tags []string }

const (
	suggestMost  = 200         // the maximum number of names of one kind
	suggestEvery = time.Minute // how long the tags are cached
)

// suggestions caches the tags that were last read.
type suggestions struct {
	mu   sync.Mutex
	tags []string
	at   time.Time
}

// Suggest returns the first queues of the last overview and the first tags of the table, in sorted order.
func (c *Core) Suggest(ctx context.Context) (Suggestions, error) {
	s := &c.suggested
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if time.Since(s.at) > suggestEvery {
		tags, rerr := readStore(ctx, c, func(ctx context.Context, s *taskview.Store) ([]string, error) {
			return s.Tags(ctx, suggestMost)
		})
		if err = rerr; err == nil {
			s.tags, s.at = tags, time.Now()
		}
	}
	return Suggestions{c.knownQueues(), s.tags}, err
}

// knownQueues returns the queues in the last overview.
func (c *Core) knownQueues() []string {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	last := c.shared.last
	if last == nil {
		return nil
	}
	var list []string
	for _, d := range last.Status.Destinations {
		if !d.Exchange {
			list = append(list, d.Name)
		}
	}
	if last.Status.Tasks != nil {
		for _, n := range last.Status.Tasks.Counts {
			list = append(list, n.Queue)
		}
	}
	slices.Sort(list)
	list = slices.DeleteFunc(slices.Compact(list), func(q string) bool { return q == "" })
	return list[:min(len(list), suggestMost)]
}

// TaskDetail is one task together with its history.
type TaskDetail struct {
	Task    schedule.TaskRow
	Effects []taskview.Effect
	Records []idempotency.Record
	Why     string      // a sentence that explains the task's current state
	Trace   trace.Trace // the facts from which Why was derived, so that a page can explain them in another language
	TraceID string      // from the task's trace context; empty if it has none
	Audit   []Entry
}

// Task returns a task with its history. Only operators see its body and most of its header values.
func (c *Core) Task(ctx context.Context, who Identity, id string) (TaskDetail, error) {
	return readStore(ctx, c, func(ctx context.Context, s *taskview.Store) (d TaskDetail, err error) {
		if d.Task, err = s.Get(ctx, schedule.NoTx, id); err != nil {
			return TaskDetail{}, err
		}
		if d.Effects, err = s.Effects(ctx, id); err != nil {
			return TaskDetail{}, err
		}
		scopes := []string{}
		if d.Task.Queue != "" {
			scopes = append(scopes, d.Task.Queue)
		}
		for _, e := range d.Effects {
			scopes = append(scopes, e.Queue)
		}
		slices.Sort(scopes)
		d.Records, err = idempotency.Find(ctx, c.cfg.DB, id, slices.Compact(scopes)...)
		if err != nil && !errors.Is(err, idempotency.ErrNoTable) {
			return TaskDetail{}, err
		}
		t := trace.Trace{
			ID: id, At: c.tasksAt(), Task: &d.Task, TasksKnown: true, Effects: d.Effects, Records: d.Records, RecordsKnown: err == nil,
			Destination: c.destination(d.Task.Destination().String()),
		}
		d.Why, d.Trace = t.Explain(), t
		if parts := strings.Split(d.Task.Headers["traceparent"], "-"); len(parts) == 4 {
			d.TraceID = parts[1]
		}
		if d.Audit, err = c.visibleEntries(ctx, who, id, "", 50); err != nil {
			return TaskDetail{}, err
		}
		veilTask(who, &d.Task.Task)
		return d, nil
	})
}

// tasksAt returns the database's time, according to the difference of the clocks in the last overview.
func (c *Core) tasksAt() time.Time {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	if last := c.shared.last; last != nil {
		return last.Status.Tasks.Clock(time.Now())
	}
	return time.Now()
}

// destination returns the state of a destination in the last overview, or nil if the overview does not contain it.
func (c *Core) destination(name string) *status.Destination {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	if last := c.shared.last; last != nil {
		for i, have := range last.Status.Destinations {
			if have.Name == name {
				return &last.Status.Destinations[i]
			}
		}
	}
	return nil
}

// Trace searches for a message or task. It also searches the dead-letter queues, which takes seconds. Only operators
// see bodies and most header values.
func (c *Core) Trace(ctx context.Context, who Identity, id string) (trace.Trace, error) {
	src, err := c.source(ctx)
	if err != nil {
		if c.cfg.Store == nil {
			return trace.Trace{}, err
		}
		src = blind(err)
	}
	src.Tasks, src.Patience = c.cfg.Store, patience
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	t, err := trace.Take(ctx, id, trace.Source{Status: src, DB: c.cfg.DB})
	if err != nil {
		return t, err
	}
	if t.Task != nil {
		veilTask(who, &t.Task.Task)
	}
	veilDead(who, t.DeadLetters)
	t.Unchecked = veilUnseen(who, t.Unchecked)
	return t, nil
}
