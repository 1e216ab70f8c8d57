package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// scenario is a set of groups that answer one question.
type scenario struct {
	name, about string
	prepare     func(ctx context.Context, r *run, s *Scenario) (end func(context.Context) error, err error) // optional, prepares what all groups share
	groups      func(o Options) []group
}

// group is a set of cases that take turns on one broker, so that they can be compared.
type group struct {
	title   string
	on      place
	repeats int
	cases   []kase
	claims  []claim
}

// kase is one case to measure.
type kase struct {
	name     string
	baseline bool
	needs    need    // server in addition to the broker
	on       *client // nil for none; cases with the same client share its connection and queues
	work     work
}

// work is the function that a case runs in each repeat.
type work func(ctx context.Context, t *turn) error

// turn is one repeat of a case.
type turn struct {
	*run

	s      *Scenario
	c      *client
	broker *broker.Broker
	row    *Case // row of the table that receives the figures
}

// claim states that a figure of a case, or its ratio to that of a baseline, is at least or at most the bound.
type claim struct {
	ours, metric, over string // over is empty for the figure itself
	bound              float64
	atMost             bool
}

func atLeast(ours, metric, over string, bound float64) claim {
	return claim{ours, metric, over, bound, false}
}

func atMost(ours, metric, over string, bound float64) claim {
	return claim{ours, metric, over, bound, true}
}

// errLeftOut reports that a required server is missing.
var errLeftOut = errors.New("left out")

// leftOut reports whether err is caused by a missing server, or by a broker that was given by its URL and cannot be
// controlled.
func leftOut(err error) bool {
	return errors.Is(err, errLeftOut) || errors.Is(err, broker.ErrNotOurs)
}

// all runs the selected scenarios.
func (r *run) all(ctx context.Context) error {
	for _, one := range scenarios {
		if !slices.Contains(r.o.Scenarios, one.name) {
			continue
		}
		s := &Scenario{Name: one.name}
		r.result.Scenarios = append(r.result.Scenarios, s)
		began := time.Now()
		err := r.scenario(ctx, one, s)
		s.Seconds = time.Since(began).Seconds()
		r.result.Seconds += s.Seconds
		r.o.Log(fmt.Sprintf("%s took %.0f s", s.Name, s.Seconds))
		switch {
		case leftOut(err) && len(r.o.Scenarios) > 1:
			s.Notef("%v", err)
		case err != nil:
			s.Notef("not finished: %v", err)
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	return nil
}

// scenario runs the groups of one scenario, and stops the brokers that it started.
func (r *run) scenario(ctx context.Context, one scenario, s *Scenario) (err error) {
	defer func() { err = joined(err, r.closeBrokers()) }()
	if one.prepare != nil {
		end, err := one.prepare(ctx, r, s)
		if err != nil {
			return err
		}
		defer func() { err = joined(err, end(context.WithoutCancel(ctx))) }()
	}
	var missing error
	for _, g := range one.groups(r.o) {
		err := r.group(ctx, s, g)
		switch {
		case leftOut(err):
			missing = err
			s.Notef("%s: %v", g.title, err)
		case err != nil:
			return fmt.Errorf("%s: %w", g.title, err)
		}
		s.judge(g.title, g.claims)
	}
	s.Cases = slices.DeleteFunc(s.Cases, func(c *Case) bool { return len(c.Metrics) == 0 })
	if len(s.Cases) == 0 {
		return missing
	}
	return nil
}

// group opens the clients of a group and runs its cases in turns: A B C, B C A, C A B. In this order, no case always
// runs after the same other case, which may leave unfinished work in the broker.
func (r *run) group(ctx context.Context, s *Scenario, g group) (err error) {
	b, err := r.at(ctx, s, g.on)
	if err != nil {
		return err
	}
	var clients []*client
	defer func() {
		for _, c := range clients {
			err = joined(err, c.close(ctx))
		}
	}()
	var works []func() error
	for _, k := range g.cases {
		if k.needs != nil {
			err := k.needs(ctx, r, s)
			if leftOut(err) {
				s.Notef("%s: %v", k.name, err)
				continue
			}
			if err != nil {
				return err
			}
		}
		if k.on != nil && !slices.Contains(clients, k.on) {
			if err := r.open(ctx, b.URL(), k.on); err != nil {
				return err
			}
			clients = append(clients, k.on)
		}
		t := &turn{run: r, s: s, c: k.on, broker: b, row: s.Find(g.title, k.name, k.baseline)}
		works = append(works, func() error {
			err := k.work(ctx, t)
			if err == nil && k.on != nil {
				err = k.on.purge()
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", k.name, err)
			}
			return err
		})
	}
	add, done := r.o.Progress(s.Name+", "+g.title, len(works)*g.repeats)
	defer done()
	return Interleave(g.repeats, works, add)
}

// Interleave calls all functions in each repeat, and starts each repeat with a different one.
func Interleave(repeats int, all []func() error, advance func(n int)) error {
	for first := range repeats {
		for i := range all {
			if err := all[(first+i)%len(all)](); err != nil {
				return err
			}
			advance(1)
		}
	}
	return nil
}

// measure runs f, which handles n messages, and records the cost per message. Allocations are those of the whole
// process, because the client library's reader also works for f.
func (t *turn) measure(n int, f func() error) error {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	err := f()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	if err != nil {
		return err
	}
	t.row.Add(metricRate, "messages/s", float64(n)/took.Seconds())
	t.row.Add(metricAllocations, "per message", float64(after.Mallocs-before.Mallocs)/float64(n))
	t.row.Add("allocated", "bytes per message", float64(after.TotalAlloc-before.TotalAlloc)/float64(n))
	return nil
}

// joined combines an error of the work with an error of the cleanup.
func joined(err, cleaning error) error {
	if cleaning == nil {
		return err
	}
	return errors.Join(err, fmt.Errorf("cleaning up: %w", cleaning))
}
