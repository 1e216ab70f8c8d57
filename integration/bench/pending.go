package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
)

// tenths is into how many parts the publishing is divided, after each of which
// the broker's memory is read.
const tenths = 10

// farDelay is 1 to 32 days: nothing comes out, and the messages wait in the 31
// queues of the days and the first of the months.
func farDelay(i int) time.Duration {
	return span{24 * time.Hour, 32*24*time.Hour - time.Millisecond}.at(i)
}

// pending finds out what many waiting messages cost: memory, disk, and the rate
// at which further ones are taken.
func (r *run) pending(ctx context.Context, s *Scenario) error {
	if err := r.freshBroker(ctx); err != nil {
		return err
	}
	t := r.o.QueueTypes[0]
	c, err := r.open(ctx, r.main, "pending", t, clock(t))
	if err != nil {
		return err
	}
	group := fmt.Sprintf("%d waiting, RabbitMQ %s", r.o.Pending, r.main.Version())
	ours := s.find(group, "bucket, "+string(t)+" queues", false)
	if err := r.heap(ctx, s, c, ours, r.o.Pending); err != nil {
		return err
	}
	s.atMost("memory per waiting message, "+ours.Name, ours, metricMemory, 100)
	s.atLeast("publish rate, last tenth / first, "+ours.Name, ours, metricLastTenth, 0.9)

	b, err := r.pluginBroker(ctx, s)
	if err != nil || b == nil {
		return err
	}
	few := max(r.o.Pending/10, 1000) // it holds some 3 kB of memory for each
	ours2, theirs, err := r.besidePlugin(ctx, b, "pending")
	if err != nil {
		return err
	}
	group = fmt.Sprintf("%d waiting, RabbitMQ %s", few, b.Version())
	a, p := s.find(group, "bucket, classic queues", false), s.find(group, "plugin", true)
	return errors.Join(r.heap(ctx, s, ours2, a, few), r.heap(ctx, s, theirs, p, few))
}

// Names of metrics of pending.
const (
	metricMemory    = "memory per message"
	metricLastTenth = "last tenth / first"
)

// heap publishes n messages that wait, and takes them away again.
func (r *run) heap(ctx context.Context, s *Scenario, c *client, kase *Case, n int) (err error) {
	defer func() { err = joined(err, c.close(ctx)) }()
	add, done := r.o.Progress("pending, "+kase.Name, n)
	defer done()
	before, err := weigh(ctx, c.broker)
	if errors.Is(err, broker.ErrNotOurs) {
		s.notef("%s: no memory and disk, because the broker was not started here", kase.Name)
	} else if err != nil {
		return err
	}
	known := err == nil
	rates := make([]float64, 0, tenths)
	for i := range tenths {
		start := time.Now()
		if err := c.sendBatches(ctx, n/tenths, batchSize, r.o.Body, farDelay, add); err != nil {
			return err
		}
		rates = append(rates, float64(n/tenths)/time.Since(start).Seconds())
		if known {
			now, err := weigh(ctx, c.broker)
			if err != nil {
				return err
			}
			kase.Curve = append(kase.Curve, Point{float64((i + 1) * (n / tenths)), float64(now.rss - before.rss)})
		}
	}
	// Of the whole course; the first and the last tenth are each one part of it.
	for _, rate := range rates {
		kase.add("publish rate by tenth", "messages/s", rate)
	}
	kase.add("first tenth", "messages/s", rates[0])
	kase.add("last tenth", "messages/s", rates[tenths-1])
	kase.add(metricLastTenth, "x", rates[tenths-1]/rates[0])
	if !known {
		return nil
	}
	after, err := settled(ctx, c.broker)
	if err != nil {
		return err
	}
	kase.add("memory before", "MiB", float64(before.rss)/mebibyte)
	kase.add("memory after", "MiB", float64(after.rss)/mebibyte)
	kase.add(metricMemory, "bytes", float64(after.rss-before.rss)/float64(n))
	kase.add("Erlang's memory per message", "bytes", float64(after.erlang-before.erlang)/float64(n))
	kase.add("disk per message", "bytes", float64(after.disk-before.disk)/float64(n))
	return nil
}

const mebibyte = 1 << 20

// weight is what a broker takes up, in bytes.
type weight struct{ rss, erlang, disk int64 }

// weighing collects garbage, and prints Erlang's memory, the resident set of the
// process and the size of its data.
const weighing = `[garbage_collect(P) || P <- processes()],
Dir = rabbit_mnesia:dir(),
io:format("~b ~s ~s", [erlang:memory(total),
  os:cmd("grep VmRSS /proc/" ++ os:getpid() ++ "/status | tr -dc 0-9"),
  os:cmd("du -sk '" ++ Dir ++ "' | cut -f1 | tr -dc 0-9")]).`

func weigh(ctx context.Context, b *broker.Broker) (weight, error) {
	out, err := b.Ctl(ctx, "--silent", "eval", weighing)
	if err != nil {
		return weight{}, err
	}
	var w weight
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if _, err := fmt.Sscanf(line, "%d %d %d", &w.erlang, &w.rss, &w.disk); err != nil {
		return weight{}, fmt.Errorf("the broker's memory: %q: %w", line, err)
	}
	w.rss <<= 10
	w.disk <<= 10
	return w, nil
}

// settled weighs until the memory no longer falls: what was just published is
// still on its way to the disk.
func settled(ctx context.Context, b *broker.Broker) (weight, error) {
	const longest = 10
	last, err := weigh(ctx, b)
	for range longest {
		if err != nil {
			return last, err
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return last, ctx.Err()
		}
		now, werr := weigh(ctx, b)
		if werr != nil || now.rss >= last.rss-last.rss/50 {
			return now, werr
		}
		last = now
	}
	return last, nil
}
