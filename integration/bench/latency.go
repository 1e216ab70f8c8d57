package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// steadyPrefetch lets consumers take what comes in bursts.
const steadyPrefetch = 500

// latency measures how late messages are at a steady rate: through the bucket
// strategy, through what is polled every second, and through the plugin. Messages
// are wanted at any instants, so that the strategy's rounding counts.
func (r *run) latency(ctx context.Context, s *Scenario) error {
	// A minute, because about once in that time a quorum broker moves its log into
	// the segments of the queues, and is later than else for two to three seconds.
	f := flow{
		rate: float64(r.o.Rate), delays: span{5 * time.Second, 35 * time.Second},
		prefill: true, warm: 10 * time.Second, measure: time.Minute,
	}
	if r.o.Quick {
		f.delays, f.warm, f.measure = span{time.Second, 3 * time.Second}, time.Second, 2*time.Second
	}
	group := fmt.Sprintf("%.0f/s, delays %.0f-%.0f s", f.rate, f.delays.lo.Seconds(), f.delays.hi.Seconds())
	repeats := min(r.o.Repeats, 2)
	p := &passes{r: r, f: f, s: s, group: group}
	defer p.close()
	var ours, coarse []*Case
	for _, t := range r.o.QueueTypes {
		c, err := r.open(ctx, r.main, "latency-"+string(t), t, clock(t))
		if err != nil {
			return err
		}
		name := "bucket, " + string(t) + " queues"
		ours = append(ours, p.add(name, false, rabbit{c, steadyPrefetch}, c.close))
		if c, err = r.open(ctx, r.main, "latency-100ms-"+string(t), t, bucket(inTenths(dlx.LayoutClock, t))); err != nil {
			return err
		}
		coarse = append(coarse, p.add(name+atTenths, true, rabbit{c, steadyPrefetch}, c.close))
	}
	polls, err := p.addPolls(ctx)
	if err != nil {
		return err
	}
	if err := p.run(ctx, repeats); err != nil {
		return err
	}
	for i, t := range r.o.QueueTypes {
		for _, poll := range polls {
			s.ratio(fmt.Sprintf("p99 of %s / %s", ours[i].Name, poll.Name), ours[i], poll, metricP99, 1.0/50, true)
		}
		limit := 30.0
		if t == topology.Classic {
			limit = 15
		}
		s.atMost("p99 of "+ours[i].Name, ours[i], metricP99, limit)
		s.ratio(fmt.Sprintf("p99 of %s / with a resolution of 100 ms", ours[i].Name), ours[i], coarse[i], metricP99, 0.5, true)
	}
	return r.latencyOfPlugin(ctx, s, f, min(repeats, 1+repeats/2))
}

// latencyOfPlugin compares with the plugin on a broker that has it.
func (r *run) latencyOfPlugin(ctx context.Context, s *Scenario, f flow, repeats int) error {
	b, err := r.pluginBroker(ctx, s)
	if err != nil || b == nil {
		return err
	}
	p := &passes{r: r, f: f, s: s, group: "the same on RabbitMQ " + b.Version()}
	defer p.close()
	ours, theirs, err := r.besidePlugin(ctx, b, "latency")
	if err != nil {
		return err
	}
	p.add("bucket, classic queues", false, rabbit{ours, steadyPrefetch}, ours.close)
	p.add("plugin, classic destination", true, rabbit{theirs, steadyPrefetch}, theirs.close)
	return p.run(ctx, repeats)
}

// besidePlugin opens a client of each strategy on the same broker. The plugin
// keeps its messages on one node, unreplicated, as classic queues do.
func (r *run) besidePlugin(ctx context.Context, b *broker.Broker, name string) (ours, theirs *client, err error) {
	if ours, err = r.open(ctx, b, name+"-bucket", topology.Classic, clock(topology.Classic)); err != nil {
		return nil, nil, err
	}
	if theirs, err = r.open(ctx, b, name+"-plugin", topology.Classic, pluggable); err != nil {
		return nil, nil, joined(err, ours.close(ctx))
	}
	return ours, theirs, nil
}

// passes are flows through several timers in turn.
type passes struct {
	r        *run
	s        *Scenario
	f        flow
	group    string
	variants []variant
	bar      func(int)
	closing  []func()
}

func (p *passes) add(name string, baseline bool, t timer, closing func(context.Context) error) *Case {
	c := p.s.find(p.group, name, baseline)
	p.closing = append(p.closing, func() {
		if err := closing(context.Background()); err != nil {
			p.s.notef("%s: cleaning up: %v", name, err)
		}
	})
	p.variants = append(p.variants, variant{func(ctx context.Context) error {
		o, err := p.f.through(ctx, t, p.r.o.Body, time.Minute, p.bar)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !o.kept { // what came of a flow that was cut short says nothing of the rate
			p.s.notef("%s, %s: the publisher could not keep the rate", p.group, name)
			return nil
		}
		c.recordLateness(o.values)
		if o.missing > 0 {
			p.s.notef("%s, %s: %d of %d did not come within a minute, and count as that late", p.group, name, o.missing, len(o.values))
		}
		return nil
	}})
	return c
}

func (p *passes) addPolls(ctx context.Context) ([]*Case, error) {
	var polls []*Case
	nothing := func(context.Context) error { return nil }
	db, err := p.r.database(ctx, p.s)
	switch {
	case errors.Is(err, errLeftOut):
		p.s.notef("no PostgreSQL: %v", err)
	case err != nil:
		return nil, err
	default:
		polls = append(polls, p.add("PostgreSQL polled every second", true, polledTable{db}, nothing))
	}
	server, err := p.r.startRedis(ctx)
	switch {
	case errors.Is(err, errLeftOut):
		p.s.notef("no Redis: %v", err)
		return polls, nil
	case err != nil:
		return nil, err
	}
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		return nil, errors.New("the URL of Redis cannot be parsed")
	}
	set := redis.NewClient(options)
	p.s.Servers = append(p.s.Servers, "Redis")
	return append(polls, p.add("Redis polled every second", true, polledSet{set}, func(context.Context) error { return set.Close() })), nil
}

func (p *passes) run(ctx context.Context, repeats int) error {
	var done func()
	p.bar, done = p.r.o.Progress("latency, "+p.group, p.f.expected()*repeats*len(p.variants))
	defer done()
	return interleave(ctx, repeats, p.variants)
}

func (p *passes) close() {
	for _, f := range p.closing {
		f()
	}
}
