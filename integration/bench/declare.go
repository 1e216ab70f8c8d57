package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// declare finds out what a layout costs before there is a message: the time to
// declare it, for the first time and when a client finds it there, and the
// broker's memory.
func (r *run) declare(ctx context.Context, s *Scenario) error {
	if err := r.freshBroker(ctx); err != nil {
		return err
	}
	conn, err := dialRaw(r.main.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }() // the work is done
	for _, t := range r.o.QueueTypes {
		if err := r.declareLayouts(ctx, s, conn, t); err != nil {
			return fmt.Errorf("%s queues: %w", t, err)
		}
	}
	return nil
}

func (r *run) declareLayouts(ctx context.Context, s *Scenario, conn *amqp.Connection, t topology.QueueType) error {
	group := string(t) + " queues"
	layouts := []struct {
		name string
		cfg  dlx.BucketConfig
	}{
		{"clock layout", dlx.BucketConfig{QueueType: t}},
		{"clock layout" + atTenths, inTenths(dlx.LayoutClock, t)},
		{"hex layout" + atTenths, inTenths(dlx.LayoutHex, t)},
		{"binary layout, 1 s", dlx.BucketConfig{QueueType: t, Layout: dlx.LayoutBinary}},
	}
	add, done := r.o.Progress("declare, "+group, len(layouts)*r.o.Repeats)
	defer done()
	var variants []variant
	for i, l := range layouts {
		prefix := fmt.Sprintf("%s-declare-%s-%d", r.tag, t, i)
		b, err := bucket(l.cfg)(prefix)
		if err != nil {
			return err
		}
		want, kase := b.Topology(), s.find(group, l.name, i > 0)
		kase.add("queues", "", float64(len(want.Queues)))
		kase.add("exchanges", "", float64(len(want.Exchanges)))
		kase.add("bindings", "", float64(len(want.Bindings)))
		variants = append(variants, variant{func(ctx context.Context) error {
			defer add(1)
			return r.declareOnce(ctx, live.Broker{Conn: conn}, want, live.ApplyOptions{Prefix: prefix}, kase)
		}})
	}
	return interleave(ctx, r.o.Repeats, variants)
}

// declareOnce declares a layout that is not there twice, and takes it away.
func (r *run) declareOnce(ctx context.Context, b live.Broker, want topology.Topology, o live.ApplyOptions, kase *Case) (err error) {
	before, err := weigh(ctx, r.main)
	known := !errors.Is(err, broker.ErrNotOurs)
	if known && err != nil {
		return err
	}
	all := want
	all.Exchanges = append(slices.Clone(want.Exchanges), topology.Exchange{Name: topology.DeclaredExchange(o.Prefix, want)})
	defer func() { err = joined(err, b.Wipe(context.WithoutCancel(ctx), all)) }()
	for _, when := range []string{"first time", "again"} {
		began := time.Now()
		if err := b.Ensure(ctx, want, o); err != nil {
			return err
		}
		kase.add(when, "s", time.Since(began).Seconds())
	}
	if !known {
		return nil
	}
	after, err := weigh(ctx, r.main)
	if err != nil {
		return err
	}
	kase.add("Erlang's memory", "MiB", float64(after.erlang-before.erlang)/mebibyte)
	return nil
}
