package service

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

const (
	fresh    = 4 * time.Second  // an overview is not taken again
	patience = 10 * time.Second // of one look with the broker
	waiting  = 2 * time.Second  // for a new overview, where there is an old one
	counted  = 10_000           // tasks of one count
	peeked   = 20               // messages of each dead-letter queue
)

// looks share one look among all who ask.
type looks struct {
	mu   sync.Mutex
	last *Overview
	next chan struct{} // closed when the look that is under way has ended; nil: none
}

// Overview is a method of Now.
func (c *Core) Overview(ctx context.Context, who Identity) (Overview, error) {
	o, err := c.overview(ctx)
	return veilOverview(who, o), err
}

func (c *Core) overview(ctx context.Context) (Overview, error) {
	l := &c.looks
	l.mu.Lock()
	last, next := l.last, l.next
	if last != nil && time.Since(last.At) < fresh {
		l.mu.Unlock()
		return *last, nil
	}
	if next == nil {
		next = make(chan struct{})
		l.next = next
		c.working.Go(func() { c.look(last, next) })
	}
	l.mu.Unlock()
	var late <-chan time.Time
	if last != nil {
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

// look takes an overview for all who wait for it.
func (c *Core) look(last *Overview, done chan struct{}) {
	ctx, cancel := context.WithTimeout(c.ctx, 3*patience)
	defer cancel()
	o := c.take(ctx, last)
	l := &c.looks
	l.mu.Lock()
	l.last, l.next = &o, nil
	l.mu.Unlock()
	close(done)
}

// Watch is a method of Now.
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

// take looks at everything. What does not answer is in Status.Unseen, and the rest is
// shown.
func (c *Core) take(ctx context.Context, last *Overview) Overview {
	o := Overview{At: time.Now(), Brokerless: c.cfg.Look == nil}
	src, err := c.source(ctx)
	if err != nil {
		src = blind(err)
	}
	src.Tasks, src.Peek, src.Patience = c.cfg.Store, peeked, patience
	if last != nil && last.Status.Broker != nil {
		src.Before = &last.Status
	}
	if o.Status, err = status.Take(ctx, src); err != nil {
		o.unseen(status.AreaBroker, err)
	}
	if err := c.problem(); err != nil {
		o.Problem = err.Error()
	}
	o.Status.At = o.At
	o.Alarms = o.Status.Alarms
	_, silent := o.Away(doctor.AreaDatabase)
	if s := c.cfg.Store; s != nil && !silent {
		if o.Horizon, err = horizon(ctx, s, o.At); err == nil {
			o.Lateness, err = c.late.points(ctx, s, o.At)
		}
		if err == nil {
			o.Ended, err = ended(ctx, s, o.At)
		}
		if err != nil {
			o.unseen(doctor.AreaDatabase, err)
		}
	}
	if m := src.Broker.Management; m != nil && o.Status.Broker != nil {
		o.Rates = rates(ctx, m)
	}
	c.warn(last, o)
	return o
}

// problem is what keeps this process from something that it does by itself.
func (c *Core) problem() error {
	if c.cfg.Problem != nil {
		if err := c.cfg.Problem(); err != nil {
			return err
		}
	}
	if err := c.purged.Load(); err != nil {
		return *err
	}
	return nil
}

// horizons are how far ahead pending tasks are counted.
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

func horizon(ctx context.Context, s *schedule.Store, now time.Time) ([]HorizonCount, error) {
	var out []HorizonCount
	var from time.Time
	for i, h := range horizons {
		f := schedule.Filter{Status: schedule.StatusPending, DueFrom: from}
		if i < len(horizons)-1 {
			f.DueTo = now.Add(h.until)
		}
		n, err := s.CountUpTo(ctx, nil, f, counted)
		if err != nil {
			return nil, err
		}
		out = append(out, HorizonCount{Name: h.name, Until: f.DueTo, Count: min(n, counted), More: n > counted})
		from = f.DueTo
	}
	return out, nil
}

// ended counts what came to an end in the hour until now.
func ended(ctx context.Context, s *schedule.Store, now time.Time) (*Ended, error) {
	var e Ended
	for _, x := range []struct {
		status schedule.Status
		before time.Duration
		to     *int64
	}{{schedule.StatusDone, time.Hour, &e.Done}, {schedule.StatusFailed, time.Hour, &e.Failed}, {schedule.StatusFailed, 2 * time.Hour, &e.FailedBefore}} {
		from := now.Add(-x.before)
		n, err := s.CountFinished(ctx, nil, x.status, from, from.Add(time.Hour), counted)
		if err != nil {
			return nil, err
		}
		*x.to = min(n, counted)
	}
	return &e, nil
}

// rates are those of the virtual host.
func rates(ctx context.Context, m *live.Management) *Rates {
	type rate struct {
		Rate float64 `json:"rate"`
	}
	var out struct {
		Stats struct {
			Publish rate `json:"publish_details"`
			Deliver rate `json:"deliver_get_details"`
		} `json:"message_stats"`
	}
	ctx, cancel := context.WithTimeout(ctx, waiting)
	defer cancel()
	if _, err := m.Call(ctx, http.MethodGet, "/api/vhosts/"+url.PathEscape(m.Vhost()), nil, &out); err != nil {
		return nil
	}
	return &Rates{In: out.Stats.Publish.Rate, Out: out.Stats.Deliver.Rate}
}
