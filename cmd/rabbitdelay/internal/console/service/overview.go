package service

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// Overview is the content of the first page, which shows the most important facts at a glance.
type Overview struct {
	At     time.Time
	Status status.Status
	// Horizon counts the pending tasks by due time, starting with the overdue ones.
	Horizon []HorizonCount
	// History counts the tasks that ended until now.
	History History
	// Ended counts the tasks that ended in the last hour. It is nil if the counts are unknown.
	Ended *Ended
	// Rates are the current message rates of the virtual host. It is nil if they are unknown: because Unmanaged is set,
	// because NoRates is set, or because the management API did not answer in time.
	Rates *Rates
	// NoRates is true if the management API has answered without rates, because the broker has not counted any message.
	NoRates bool
	// Unmanaged is true if this process is not configured with a management API.
	Unmanaged bool
	// Alarms are the broker's memory and disk alarms, by node. It is nil if they are unknown.
	Alarms []string
	// Problem is the reason why this process cannot do its work. It is empty if there is none.
	Problem string
	// Brokerless is true if this process is not configured with a broker.
	Brokerless bool
}

// HorizonCount counts the pending tasks that are due before Until but not before the Until of the previous count.
type HorizonCount struct {
	Name  string    // overdue, 1m, 1h, 1d, 7d, 30d, later
	Until time.Time // zero for later
	Count int64
	More  bool // counting stopped at the limit
}

// Ended counts the tasks that were done or failed within the last hour, the tasks that failed in the hour before it
// and within the last day, and the tasks that are being retried after a failed attempt. Each count stops at 10,000.
type Ended struct{ Done, Failed, FailedBefore, FailedDay, Retried int64 }

// Rates are rates in messages per second.
type Rates struct{ In, Out float64 }

// Blind returns why the overview shows nothing about the broker, or an empty string if the overview shows the broker.
func (o Overview) Blind() string {
	switch {
	case o.Status.Broker != nil:
		return ""
	case o.Brokerless:
		return "This console is not connected to a broker."
	}
	return "The broker could not be read."
}

// TasksAt returns the database's time at which the overview was taken. Tasks and relays use the database's clock.
func (o Overview) TasksAt() time.Time { return o.Status.Tasks.Clock(o.At) }

// AlarmsKnown reports whether the broker's alarms could be read.
func (o Overview) AlarmsKnown() bool { return o.Alarms != nil }

// ClientsKnown reports whether the connections of clients could be read.
func (o Overview) ClientsKnown() bool { return o.Status.Clients != nil }

// Away reports whether the area, which is the broker or the database, does not answer, and why.
func (o Overview) Away(area doctor.Area) (why string, away bool) {
	i := slices.IndexFunc(o.Status.Unchecked, func(u doctor.Unchecked) bool { return u.Area == area })
	if i < 0 {
		return "", false
	}
	return o.Status.Unchecked[i].Why, true
}

func (o *Overview) addUnseen(area doctor.Area, err error) {
	if _, known := o.Away(area); !known {
		o.Status.Unchecked = append(o.Status.Unchecked, doctor.Unchecked{Area: area, Why: err.Error()})
	}
}

const (
	fresh    = 4 * time.Second  // the maximum age of an overview that is reused
	patience = 20 * time.Second // the timeout of one survey of the broker, which may wait for up to three queues that do not answer
	waiting  = 2 * time.Second  // how long to wait for a new overview before returning one that is not outdated
	rating   = 5 * time.Second  // the timeout for the message rates, which are read at the same time as the rest
	outdated = 3 * patience     // the age at which an overview is no longer shown; no survey takes longer
	counted  = 10_000           // the limit of each count of tasks
	peeked   = 20               // the number of messages peeked in each dead-letter queue
)

// sharedOverview is the latest overview, which is shared among all concurrent callers.
type sharedOverview struct {
	mu   sync.Mutex
	last *Overview
	next chan struct{} // closed when the current survey ends; nil if none is running
}

// Overview returns an overview that all callers share. It is at most a few seconds old, or up to a minute if the
// current survey takes long. As in other methods, only operators see why something could not be read or done.
func (c *Core) Overview(ctx context.Context, who Identity) (Overview, error) {
	o, err := c.overview(ctx)
	if !who.Role.May(RoleOperator) && o.Problem != "" {
		o.Problem = untold
	}
	o.Status.Unchecked = veilUnseen(who, o.Status.Unchecked)
	return o, err
}

func (c *Core) overview(ctx context.Context) (Overview, error) {
	l := &c.shared
	l.mu.Lock()
	last, next := l.last, l.next
	if last != nil && time.Since(last.At) < fresh {
		l.mu.Unlock()
		return *last, nil
	}
	if next == nil {
		next = make(chan struct{})
		l.next = next
		c.working.Go(func() { c.refresh(last, next) })
	}
	l.mu.Unlock()
	// If the overview has not been read for some time, the last one is too old to be shown, because a component that did
	// not answer then may answer now.
	var late <-chan time.Time
	if last != nil && time.Since(last.At) < outdated {
		timer := time.NewTimer(waiting)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
		return Overview{}, ctx.Err()
	case <-late:
		return *last, nil
	case <-next:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.last, nil
}

// refresh creates one overview for all waiting callers.
func (c *Core) refresh(last *Overview, done chan struct{}) {
	ctx, cancel := context.WithTimeout(c.ctx, 3*patience)
	defer cancel()
	o := c.survey(ctx, last)
	l := &c.shared
	l.mu.Lock()
	l.last, l.next = &o, nil
	l.mu.Unlock()
	close(done)
}

// Watch calls the function each with every new Overview until ctx ends or the function returns an error.
func (c *Core) Watch(ctx context.Context, who Identity, each func(Overview) error) error {
	var at time.Time
	for {
		o, err := c.Overview(ctx, who)
		if err != nil {
			return err
		}
		if o.At != at {
			at = o.At
			if err := each(o); err != nil {
				return err
			}
		}
		timer := time.NewTimer(max(fresh-time.Since(at), waiting/4))
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-c.ctx.Done():
			timer.Stop()
			return c.ctx.Err()
		case <-timer.C:
		}
	}
}

// survey reads everything that an overview shows. Areas that do not answer are listed in Status.Unchecked.
func (c *Core) survey(ctx context.Context, last *Overview) Overview {
	o := Overview{At: time.Now(), Brokerless: c.cfg.Broker == nil}
	src, err := c.source(ctx)
	if err != nil {
		src = blind(err)
	}
	src.Tasks, src.Peek, src.Patience = c.cfg.Store, peeked, patience
	if last != nil && last.Status.Broker != nil {
		src.Before = &last.Status
	}
	var rates *Rates
	noRates := false
	var wg sync.WaitGroup
	if o.Unmanaged = src.Broker.Management == nil; !o.Unmanaged {
		wg.Go(func() { rates, noRates = readRates(ctx, src.Broker.Management) }) // a slow API takes seconds for each request
	}
	if o.Status, err = status.Take(ctx, src); err != nil {
		o.addUnseen(status.AreaBroker, err)
	}
	if err := c.problem(); err != nil {
		o.Problem = err.Error()
	}
	o.Status.At = o.At
	o.Alarms = o.Status.Alarms
	_, silent := o.Away(doctor.AreaDatabase)
	if s := c.cfg.Store; s != nil && !silent {
		now := o.TasksAt()
		if o.Horizon, err = countAhead(ctx, s, now); err == nil {
			o.History, err = c.history.view(ctx, s, now)
		}
		if err == nil {
			o.Ended, err = countEnded(ctx, s, now)
		}
		if err != nil {
			o.addUnseen(doctor.AreaDatabase, err)
		}
	}
	wg.Wait()
	if o.Status.Broker.Managed() {
		o.Rates, o.NoRates = rates, noRates
	}
	c.warn(last, o)
	return o
}

// problem returns everything that keeps this process from working, or nil.
func (c *Core) problem() error {
	var all error
	add := func(err error) {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	if c.cfg.Problem != nil {
		add(c.cfg.Problem())
	}
	for _, last := range []*atomic.Pointer[error]{&c.purged, &c.unkept} {
		if err := last.Load(); err != nil {
			add(*err)
		}
	}
	return all
}

// horizons are the time spans for which pending tasks are counted.
var horizons = []struct {
	name  string
	until time.Duration
}{
	{"overdue", 0},
	{"1m", time.Minute},
	{"1h", time.Hour},
	{"1d", 24 * time.Hour},
	{"7d", 7 * 24 * time.Hour},
	{"30d", 30 * 24 * time.Hour},
	{"later", 0},
}

func countAhead(ctx context.Context, s *taskview.Store, now time.Time) ([]HorizonCount, error) {
	var out []HorizonCount
	var from time.Time
	for i, h := range horizons {
		f := schedule.Filter{Status: schedule.StatusPending, DueFrom: from}
		if i < len(horizons)-1 {
			f.DueTo = now.Add(h.until)
		}
		n, err := s.CountUpTo(ctx, schedule.NoTx, f, counted)
		if err != nil {
			return nil, err
		}
		out = append(out, HorizonCount{Name: h.name, Until: f.DueTo, Count: min(n, counted), More: n > counted})
		from = f.DueTo
	}
	return out, nil
}

// countEnded counts the tasks that ended within the last hour and day.
func countEnded(ctx context.Context, s *taskview.Store, now time.Time) (*Ended, error) {
	var e Ended
	for _, x := range []struct {
		status   schedule.Status
		from, to time.Duration // before now
		count    *int64
	}{
		{schedule.StatusDone, time.Hour, 0, &e.Done},
		{schedule.StatusFailed, time.Hour, 0, &e.Failed},
		{schedule.StatusFailed, 2 * time.Hour, time.Hour, &e.FailedBefore},
		{schedule.StatusFailed, 24 * time.Hour, 0, &e.FailedDay},
	} {
		n, err := s.CountFinished(ctx, x.status, now.Add(-x.from), now.Add(-x.to), counted)
		if err != nil {
			return nil, err
		}
		*x.count = min(n, counted)
	}
	var err error
	e.Retried, err = s.CountRetried(ctx, counted)
	return &e, err
}

// readRates returns the rates of the virtual host, or nil if they cannot be read. The result none is true if the
// management API has answered without rates.
func readRates(ctx context.Context, m *live.Management) (r *Rates, none bool) {
	type rate struct {
		Rate float64 `json:"rate"`
	}
	var out struct {
		Stats json.RawMessage `json:"message_stats"` // absent or an empty list until a message was counted
	}
	ctx, cancel := context.WithTimeout(ctx, rating)
	defer cancel()
	if _, err := m.Call(ctx, http.MethodGet, "/api/vhosts/"+url.PathEscape(m.Vhost()), nil, &out); err != nil {
		return nil, false
	}
	var stats struct {
		Publish *rate `json:"publish_details"`
		Deliver *rate `json:"deliver_get_details"`
	}
	if json.Unmarshal(out.Stats, &stats) != nil || stats.Publish == nil && stats.Deliver == nil {
		return nil, true
	}
	r = &Rates{}
	if stats.Publish != nil { // a kind of event that never happened is absent
		r.In = stats.Publish.Rate
	}
	if stats.Deliver != nil {
		r.Out = stats.Deliver.Rate
	}
	return r, false
}

// warn logs that the broker or the database does not answer, unless the previous overview had the same reason.
func (c *Core) warn(last *Overview, o Overview) {
	for _, area := range []doctor.Area{status.AreaBroker, doctor.AreaDatabase} {
		why, away := o.Away(area)
		if !away || area == status.AreaBroker && o.Brokerless {
			continue
		}
		if last != nil {
			if before, _ := last.Away(area); before == why {
				continue
			}
		}
		c.log.Warn("the "+string(area)+" does not answer", zap.String("error", why))
	}
}
