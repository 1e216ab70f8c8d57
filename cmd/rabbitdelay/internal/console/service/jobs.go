package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

var (
	errNotMine = errors.New("the job was stopped, or another process has taken it over")
	errClosing = errors.New("the process was stopped")
)

// request describes the work of a job, as the ledger stores it.
type request struct {
	Bulk    *bulkRequest `json:"bulk,omitempty"`
	Requeue *Requeue     `json:"requeue,omitempty"`
	Retire  bool         `json:"retire,omitempty"`
}

// words describes the request in words. It includes header values only if values is true, because only operators may
// see them.
func (q request) words(values bool) string {
	switch {
	case q.Bulk != nil:
		return change.BulkEntry(q.Bulk.Filter, q.Bulk.Action, q.Bulk.Count, values).Detail
	case q.Requeue != nil:
		r := q.Requeue
		text := "at most " + shown.Count(r.Limit, "message", "messages")
		if r.To != (topology.Destination{}) {
			text += " to " + r.To.String()
		}
		if r.Rate > 0 {
			text += fmt.Sprintf(", %g a second", r.Rate)
		}
		if !r.Filter.Empty() {
			text += " with " + DescribeDead(r.Filter, values)
		}
		return text
	}
	return ""
}

// detailOf describes a stored request in words for an operator. It returns "" if text is empty or cannot be read.
func detailOf(text string) string {
	var q request
	if text == "" || json.Unmarshal([]byte(text), &q) != nil { //nolint:musttag // as start writes it
		return ""
	}
	return q.words(true)
}

// working is a job that is running in this process.
type working struct {
	c  *Core
	mu sync.Mutex // guards r
	r  record
}

// progress records the position of the job and the tasks that it changed, in tx unless tx is nil. It returns errNotMine
// if this process no longer owns the job.
func (w *working) progress(ctx context.Context, tx sqldb.Conn, done int64, place string, ids []any) error {
	now := w.now()
	now.Done, now.place = done, place
	mine, err := w.c.ledger.reached(ctx, tx, now, ids)
	if err == nil && !mine {
		err = errNotMine
	}
	return err
}

// at sets the job's position in memory. It is written to the ledger by heartbeats, unless the job itself records it,
// and at the end of the job.
func (w *working) at(done int64, place string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.r.Done, w.r.place = done, place
}

func (w *working) now() record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.r
}

// start records a job and runs it in the background.
func (c *Core) start(ctx context.Context, who Identity, e change.Entry, total int64, q request) (Job, error) {
	entry := newEntry(who, e)
	if !who.Role.May(RoleOperator) {
		return Job{}, fmt.Errorf("%s: %w", e.Action, ErrForbidden)
	}
	text, err := json.Marshal(q) //nolint:musttag // only ContinueJob and detailOf read it
	if err != nil {
		return Job{}, err
	}
	r := record{Job: Job{ID: entry.ID, Entry: entry, State: JobRunning, Total: total}, request: string(text), owner: c.owner}
	if err := c.record(ctx, r); err != nil {
		return Job{}, fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	c.logged(entry)
	c.run(r, q)
	return r.Job, nil
}

// run executes a job of this process in the background.
func (c *Core) run(r record, q request) {
	w := &working{c: c, r: r}
	c.working.Go(func() {
		ctx, cancel := context.WithCancelCause(c.ctx)
		defer cancel(nil)
		beating := make(chan struct{})
		go func() {
			defer close(beating)
			w.beat(ctx, cancel, q.Bulk != nil)
		}()
		var result string
		var err error
		switch {
		case q.Bulk != nil:
			result, err = c.bulk(ctx, w, *q.Bulk)
		case q.Requeue != nil:
			result, err = c.requeue(ctx, w, *q.Requeue)
		default:
			result, err = c.retire(ctx)
		}
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		cancel(nil)
		<-beating
		w.finish(result, err)
	})
}

// beat sends heartbeats until ctx ends. They include the job's position unless the job records it itself. If the job
// was stopped or taken over by another process, beat cancels it.
func (w *working) beat(ctx context.Context, cancel context.CancelCauseFunc, recordsItself bool) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r := w.now()
		var mine bool
		var err error
		if recordsItself {
			mine, err = w.c.ledger.alive(ctx, r)
		} else {
			mine, err = w.c.ledger.reached(ctx, nil, r, nil)
		}
		switch {
		case err != nil: // try again at the next heartbeat
			w.c.log.Warn("could not record the heartbeat of a job; trying again", zap.String("job", r.ID), zap.Error(err))
		case !mine:
			cancel(errNotMine)
			return
		}
	}
}

// finish records the outcome of the job.
func (w *working) finish(result string, err error) {
	r := w.now()
	r.State, r.Result = JobDone, result
	switch {
	case errors.Is(err, errNotMine):
		r.State = JobStopped // the ledger has this state already
	case err != nil && w.c.ctx.Err() != nil:
		r.State, r.Result = JobInterrupted, errClosing.Error()
	case err != nil:
		r.State, r.Entry.Error = JobFailed, err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), waiting)
	defer cancel()
	if eerr := w.c.ledger.end(ctx, r); eerr != nil {
		w.c.log.Warn("could not record the end of a job", zap.String("job", r.ID), zap.Error(eerr))
	}
	w.c.log.Info("a job ended", zap.String("id", r.ID), zap.String("action", r.Entry.Action), zap.String("state", string(r.State)),
		zap.Int64("done", r.Done), zap.String("result", r.Result), zap.String("error", r.Entry.Error))
}

// Job returns a job of this process, or of another process on the same database.
func (c *Core) Job(ctx context.Context, who Identity, id string) (Job, error) {
	r, err := c.job(ctx, id)
	veilEntry(who, &r.Entry)
	return r.Job, err
}

func (c *Core) job(ctx context.Context, id string) (record, error) {
	list, err := read(ctx, c, func(ctx context.Context) ([]record, error) { return c.ledger.jobs(ctx, id, 1) })
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("job %s: %w", id, ErrNoJob)
	}
	if err != nil {
		return record{}, err
	}
	return list[0], nil
}

// Jobs returns the newest jobs.
func (c *Core) Jobs(ctx context.Context, who Identity, limit int) ([]Job, error) {
	if err := within("limit", limit, MaxEntries); err != nil {
		return nil, err
	}
	list, err := read(ctx, c, func(ctx context.Context) ([]record, error) { return c.ledger.jobs(ctx, "", limit) })
	out := make([]Job, len(list))
	for i, r := range list {
		out[i] = r.Job
		veilEntry(who, &out[i].Entry)
	}
	return out, err
}

// StopJob stops a running job after its current step, even if it runs in another process.
func (c *Core) StopJob(ctx context.Context, who Identity, id string) (Job, error) {
	err := c.recorded(ctx, who, change.Entry{Action: "job.stop", Target: id}, func() error {
		r, err := c.job(ctx, id)
		if err != nil {
			return err
		}
		stopped, err := c.ledger.stop(ctx, id)
		if err == nil && !stopped {
			err = fmt.Errorf("%w: job %s is %s; expected a running job", ErrJobState, id, r.State)
		}
		return err
	})
	if err != nil {
		return Job{}, err
	}
	return c.Job(ctx, who, id)
}

// ContinueJob resumes a job that failed, or was interrupted or stopped.
func (c *Core) ContinueJob(ctx context.Context, who Identity, id string) (Job, error) {
	err := c.recorded(ctx, who, change.Entry{Action: "job.continue", Target: id}, func() error {
		r, err := c.job(ctx, id)
		if err != nil {
			return err
		}
		var q request
		if err := json.Unmarshal([]byte(r.request), &q); err != nil { //nolint:musttag // start has written it
			return fmt.Errorf("job %s: reading its stored request: %w", id, err)
		}
		owner := newID() // ends a run under the previous owner that is still active in this process
		taken, err := c.ledger.take(ctx, id, owner)
		if err != nil {
			return err
		}
		if !taken {
			return fmt.Errorf("%w: job %s is %s; expected a job that failed, or was interrupted or stopped", ErrJobState, id, r.State)
		}
		if r, err = c.job(ctx, id); err != nil {
			return err
		}
		c.run(r, q)
		return nil
	})
	if err != nil {
		return Job{}, err
	}
	return c.Job(ctx, who, id)
}

// MaxEntries is the maximum number of entries or jobs that Audit and Jobs return.
const MaxEntries = 500

// Audit returns the newest entries or, if before is an entry's id, the ones older than that entry. If target is not
// empty, it returns only the entries about this target.
func (c *Core) Audit(ctx context.Context, who Identity, target, before string, limit int) ([]Entry, error) {
	if err := within("limit", limit, MaxEntries); err != nil {
		return nil, err
	}
	return read(ctx, c, func(ctx context.Context) ([]Entry, error) { return c.visibleEntries(ctx, who, target, before, limit) })
}

// AuditLongerThan reports whether the audit has more than n entries about a target, or more than n entries in all if
// target is empty.
func (c *Core) AuditLongerThan(ctx context.Context, target string, n int) (bool, error) {
	return read(ctx, c, func(ctx context.Context) (bool, error) { return c.ledger.longer(ctx, target, n) })
}

// visibleEntries returns the entries of the ledger, without the parts that the caller is not allowed to see.
func (c *Core) visibleEntries(ctx context.Context, who Identity, target, before string, limit int) ([]Entry, error) {
	records, err := c.ledger.entries(ctx, target, before, limit)
	list := make([]Entry, len(records))
	for i, r := range records {
		list[i] = r.Entry
		list[i].Result = cmp.Or(r.Entry.Result, r.Result)
		if who.Role.May(RoleOperator) {
			list[i].Detail = cmp.Or(detailOf(r.request), r.Entry.Detail)
		}
		veilEntry(who, &list[i])
	}
	return list, err
}
