package bench

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/lateness"
	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// sustained is the p99 lateness, in milliseconds, under which a rate counts as
// sustained.
const sustained = 1000.0

// Between which rates is searched, per second, and how often the interval in
// which the answer lies is halved.
const (
	slowest = 500.0
	fastest = 64_000.0
	halving = 3
)

// sustain finds the highest rate at which the p99 lateness stays under a second:
// of the default layout beside a coarser one, of that beside the binary one, and
// beside the plugin.
func (r *run) sustain(ctx context.Context, s *Scenario) error {
	t := r.o.QueueTypes[0]
	layouts := r.newContest(s, string(t)+" queues, RabbitMQ "+r.main.Version())
	for i, l := range []struct {
		name string
		cfg  dlx.BucketConfig
	}{
		{"clock layout", dlx.BucketConfig{QueueType: t}},
		{"clock layout" + atTenths, inTenths(dlx.LayoutClock, t)},
		{"binary layout" + atTenths, inTenths(dlx.LayoutBinary, t)},
	} {
		c, err := r.open(ctx, r.main, fmt.Sprintf("sustain-%d", i), t, bucket(l.cfg))
		if err != nil {
			return joined(err, layouts.close(ctx))
		}
		layouts.enter(l.name, c)
	}
	layouts.compare(0, 1, 0.5)
	layouts.compare(1, 2, 5)
	if err := layouts.decide(ctx); err != nil {
		return err
	}
	b, err := r.pluginBroker(ctx, s)
	if err != nil || b == nil {
		return err
	}
	ours, theirs, err := r.besidePlugin(ctx, b, "sustain")
	if err != nil {
		return err
	}
	plugins := r.newContest(s, "classic queues, RabbitMQ "+b.Version())
	plugins.enter("clock layout", ours)
	plugins.enter("plugin", theirs)
	plugins.compare(0, 1, 1)
	return plugins.decide(ctx)
}

// contest finds for each of its entries the highest rate that it sustains, and
// compares them.
type contest struct {
	r       *run
	s       *Scenario
	group   string
	f       flow
	entries []*entry
	claims  []claim
}

// claim is that the rate of one entry is at least bound times that of another.
type claim struct {
	ours, base int
	bound      float64
}

// entry is one of those, with the highest rate that held and the lowest that did
// not.
type entry struct {
	kase     *Case
	c        *client
	held     float64
	failed   float64
	p99      float64 // at the rate that held
	halvings int
}

func (r *run) newContest(s *Scenario, group string) *contest {
	f := flow{delays: span{2 * time.Second, 6 * time.Second}, warm: 6 * time.Second, measure: 6 * time.Second}
	if r.o.Quick {
		f.delays, f.warm, f.measure = span{500 * time.Millisecond, time.Second}, time.Second, time.Second
	}
	return &contest{r: r, s: s, group: group, f: f}
}

func (n *contest) enter(name string, c *client) {
	n.entries = append(n.entries, &entry{kase: n.s.find(n.group, name, len(n.entries) > 0), c: c})
}

func (n *contest) compare(ours, base int, bound float64) {
	n.claims = append(n.claims, claim{ours, base, bound})
}

// decide searches, all entries in turn, and compares.
func (n *contest) decide(ctx context.Context) (err error) {
	defer func() { err = joined(err, n.close(ctx)) }()
	steps := 2 * int(math.Log2(fastest/slowest))
	add, done := n.r.o.Progress("sustain, "+n.group, len(n.entries)*steps)
	defer done()
	for range steps {
		for _, e := range n.entries {
			add(1)
			rate := e.next()
			if rate == 0 || n.r.o.Quick && e.held > 0 {
				continue
			}
			if err := n.try(ctx, e, rate); err != nil {
				return fmt.Errorf("%s: %w", e.kase.Name, err)
			}
		}
	}
	for _, e := range n.entries {
		if e.held == 0 {
			n.s.notef("%s (%s): not even %.0f/s were sustained", e.kase.Name, n.group, slowest)
			continue
		}
		e.kase.add(metricRate, "messages/s", e.held)
		e.kase.add(metricP99, "ms late", e.p99)
	}
	for _, c := range n.claims {
		ours, base := n.entries[c.ours].kase, n.entries[c.base].kase
		n.s.ratio(fmt.Sprintf("sustained rate, %s: %s / %s", n.group, ours.Name, base.Name), ours, base, metricRate, c.bound, false)
	}
	return nil
}

// next is the rate to try: twice the last until one fails, then the middle. It is
// 0 when the answer is found.
func (e *entry) next() float64 {
	switch {
	case e.failed == 0 && e.held == 0:
		return slowest
	case e.failed == 0 && e.held < fastest:
		return 2 * e.held
	case e.failed == 0 || e.held == 0 || e.halvings == halving:
		return 0
	}
	e.halvings++
	return math.Sqrt(e.held * e.failed)
}

// try finds out whether an entry sustains a rate.
func (n *contest) try(ctx context.Context, e *entry, rate float64) error {
	f := n.f
	f.rate = rate
	o, err := f.through(ctx, rabbit{e.c, steadyPrefetch}, n.r.o.Body, 10*time.Second, func(int) {})
	if err != nil {
		return err
	}
	p99 := math.Inf(1)
	if len(o.values) > 0 {
		p99 = lateness.Percentile(o.values, 0.99)
	}
	holds := o.kept && o.missing == 0 && p99 < sustained
	n.r.o.Log(fmt.Sprintf("sustain: %s, %s: %.0f/s, p99 %.0f ms late, rate kept: %t", n.group, e.kase.Name, rate, p99, o.kept))
	if holds {
		e.held, e.p99 = rate, p99
	} else {
		e.failed = rate
	}
	return nil
}

func (n *contest) close(ctx context.Context) error {
	var err error
	for _, e := range n.entries {
		err = joined(err, e.c.close(ctx))
	}
	return err
}
