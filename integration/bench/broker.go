package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

const mebibyte = 1 << 20

// processorTime measures the broker's CPU time for n messages, from publishing until they are in the destination queue.
// Unlike a rate, this hardly depends on other load on the machine. The parameter direct is the cost of a message
// without a hop. The client must count hops.
func processorTime(n int, delay delayFor, direct *float64) work {
	return func(ctx context.Context, t *turn) error {
		before := t.c.hops.Load()
		taken, took, err := t.spent(ctx, func() error {
			if err := t.sendBatches(ctx, n, batchSize, delay); err != nil {
				return err
			}
			return t.filled(ctx, n)
		})
		if err != nil {
			return err
		}
		hops := float64(t.c.hops.Load()-before) / float64(n)
		if err := t.c.purge(); err != nil {
			return err
		}
		// Subtract the CPU time of an idle broker, including its answers to this measurement.
		idle, during, err := t.spent(ctx, func() error { return wait.For(ctx, 3*time.Second) })
		if err != nil {
			return err
		}
		each := (taken - idle*took/during) * 1e6 / float64(n)
		t.row.Add("hops", "per message", hops)
		t.row.Add("broker's CPU", "us per message", each)
		if hops == 0 {
			*direct = each
		} else {
			t.row.Add("broker's CPU per hop", "us", (each-*direct)/hops)
		}
		t.row.Add(metricRate, "messages/s per core of the broker", 1e6/each)
		return nil
	}
}

// spent returns the broker's CPU time during f and the duration of f, both in seconds.
func (t *turn) spent(ctx context.Context, f func() error) (processor, took float64, err error) {
	const milliseconds = "element(1, erlang:statistics(runtime))."
	began, before := time.Now(), 0.0
	if err := t.eval(ctx, milliseconds, &before); err != nil {
		return 0, 0, err
	}
	if err := f(); err != nil {
		return 0, 0, err
	}
	err = t.eval(ctx, milliseconds, &processor)
	return (processor - before) / 1000, time.Since(began).Seconds(), err
}

// eval evaluates an expression on the broker and reads the numbers that it prints.
func (t *turn) eval(ctx context.Context, expression string, numbers ...any) error {
	out, err := t.broker.Ctl(ctx, "--silent", "eval", expression)
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(out, numbers...); err != nil {
		return fmt.Errorf("the broker printed %q: %w", out, err)
	}
	return nil
}

// filled waits until n messages are in the destination queue.
func (t *turn) filled(ctx context.Context, n int) error {
	ch, err := t.c.conn.Channel()
	if err != nil {
		return err
	}
	defer ch.Close()
	for {
		q, err := ch.QueueDeclarePassive(t.c.queue, true, false, false, false, nil)
		if err != nil || q.Messages >= n {
			return err
		}
		if err := wait.For(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// declareLayout declares a layout that does not exist, declares it again, and deletes it.
func declareLayout(c *client) work {
	return func(ctx context.Context, t *turn) (err error) {
		conn, err := dialRaw(t.broker.URL())
		if err != nil {
			return err
		}
		defer func() { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }() // the work is done
		prefix := t.tag + "-declare"
		layout, err := c.strategy(prefix)
		if err != nil {
			return err
		}
		want := layout.Topology()
		t.row.Add("queues", "", float64(len(want.Queues)))
		t.row.Add("exchanges", "", float64(len(want.Exchanges)))
		t.row.Add("bindings", "", float64(len(want.Bindings)))
		before, err := t.weigh(ctx)
		if err != nil {
			return err
		}
		all := want
		all.Exchanges = append(slices.Clone(want.Exchanges), topology.Exchange{Name: live.DeclaredExchange(prefix, want)})
		b := live.Broker{Conn: conn}
		defer func() { err = joined(err, b.DeleteAll(context.WithoutCancel(ctx), all)) }()
		for _, when := range []string{"first time", "again"} {
			began := time.Now()
			if err := b.Ensure(ctx, want, live.ApplyOptions{Prefix: prefix}); err != nil {
				return err
			}
			t.row.Add(when, "s", time.Since(began).Seconds())
		}
		after, err := t.weigh(ctx)
		t.row.Add("Erlang's memory", "MiB", (after.erlang-before.erlang)/mebibyte)
		return err
	}
}

// pile publishes n messages with delays of 1 to 32 days. None of them is delivered during the run. They are in the 31
// queues of the days and the first queue of the months.
func pile(n int) work {
	return func(ctx context.Context, t *turn) error {
		before, err := t.weigh(ctx)
		if err != nil {
			return err
		}
		far := span{24 * time.Hour, 32*24*time.Hour - time.Millisecond}
		const parts = 10
		rates := make([]float64, parts)
		for i := range rates {
			began := time.Now()
			if err := t.sendBatches(ctx, n/parts, batchSize, far.at); err != nil {
				return err
			}
			rates[i] = float64(n/parts) / time.Since(began).Seconds()
			now, err := t.weigh(ctx)
			if err != nil {
				return err
			}
			t.row.Add("publish rate by tenth", "messages/s", rates[i])
			t.row.Add("memory by tenth", "MiB", now.rss/mebibyte)
		}
		t.row.Add("first tenth", "messages/s", rates[0])
		t.row.Add("last tenth", "messages/s", rates[parts-1])
		t.row.Add(metricLastTenth, "x", rates[parts-1]/rates[0])
		after, err := t.settled(ctx)
		t.row.Add("memory before", "MiB", before.rss/mebibyte)
		t.row.Add("memory after", "MiB", after.rss/mebibyte)
		t.row.Add(metricMemory, "bytes", (after.rss-before.rss)/float64(n))
		t.row.Add("Erlang's memory per message", "bytes", (after.erlang-before.erlang)/float64(n))
		t.row.Add("disk per message", "bytes", (after.disk-before.disk)/float64(n))
		return err
	}
}

// weight is a broker's resource usage in bytes: Erlang's memory, the resident set size of its process, and the size of
// its data.
type weight struct{ erlang, rss, disk float64 }

// weigh measures the broker's resource usage after a garbage collection of all Erlang processes.
func (t *turn) weigh(ctx context.Context) (w weight, err error) {
	err = t.eval(ctx, `[garbage_collect(P) || P <- processes()], io:format("~b ~s ~s", [erlang:memory(total),
		os:cmd("grep VmRSS /proc/" ++ os:getpid() ++ "/status | tr -dc 0-9"),
		os:cmd("du -sk '" ++ rabbit_mnesia:dir() ++ "' | cut -f1 | tr -dc 0-9")]).`, &w.erlang, &w.rss, &w.disk)
	return weight{w.erlang, w.rss * 1024, w.disk * 1024}, err
}

// settled measures the resource usage repeatedly until the memory no longer falls, because recently published messages are
// still being written to the disk.
func (t *turn) settled(ctx context.Context) (now weight, err error) {
	last, err := t.weigh(ctx)
	for i := 0; i < 10 && err == nil; i++ {
		if err = wait.For(ctx, time.Second); err == nil {
			now, err = t.weigh(ctx)
		}
		if now.rss >= 0.98*last.rss {
			break
		}
		last = now
	}
	return now, err
}
