package snapshot

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The counts of the management API are up to 10 s old, because a queue reports its counts every 5 s, and they are
// collected every 5 s.
const (
	recountEvery = time.Second
	outdatedFor  = 11 * time.Second
	hastyFor     = 6 * time.Second // for route queues, if the caller is in a hurry
	// uncountedFor is how long a queue that was just declared takes until the management API has its counts: up to 5 s on
	// RabbitMQ 4.3, and up to 10 s on 3.10.
	uncountedFor = 11 * time.Second
)

// counts replaces older counts of ready messages with the broker's own. If these contradict a count that only the
// management API has, or if the management API has not counted a queue yet, it waits for the management API to update
// its counts.
func (c *collector) counts(ctx context.Context) error {
	for _, name := range c.kept() {
		c.older[name] = c.snap.Live.Queues[name].Messages
	}
	watched := c.watched()
	if err := c.count(ctx, watched); err != nil {
		return err
	}
	if !c.managed {
		watched = slices.Collect(maps.Keys(c.snap.Live.Queues))
	}
	if err := c.leaderless(ctx, watched); err != nil || !c.managed {
		return err
	}
	began := time.Now()
	tick := time.NewTicker(recountEvery)
	defer tick.Stop()
	unread := false // whether the management API has stopped answering in time
	for {
		routes, held := c.outdated(time.Since(began))
		waits := !c.src.Hasty && !c.disabled && !unread && time.Since(began) < uncountedFor && len(c.notCounted()) > 0
		exhausted := c.exhausted() // then waiting does not help, because nothing can be read again
		if len(routes)+len(held) == 0 && !waits || exhausted {
			if c.src.Hasty || exhausted {
				c.doubt()
			}
			c.reportNotCounted()
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if waits {
			answered, err := c.countAgain(ctx, c.notCounted())
			if err != nil {
				return err
			}
			unread = !answered
		}
		c.recount(ctx, routes, held)
		if err := c.count(ctx, held); err != nil {
			return err
		}
	}
}

// outdated returns the route queues and the dead-letter queues whose counts may still change, the given time after they
// were first read.
func (c *collector) outdated(after time.Duration) (routes, held []string) {
	patience := outdatedFor
	if c.src.Hasty {
		patience = hastyFor
	}
	if after < patience {
		for _, r := range c.snap.Live.Routes(c.cfg.Prefix, c.cfg.Want) { // a message in transit is in its route queue for a moment
			if q := c.snap.Live.Queues[r.Queue]; q.Messages > 0 && !q.Unknown() {
				routes = append(routes, r.Queue)
			}
		}
	}
	if after < outdatedFor && !c.src.Hasty {
		held = c.held()
	}
	return routes, held
}

// notCounted returns the queues that may contain messages of this configuration and that the management API has not
// counted yet. Their messages that are not ready are unknown.
func (c *collector) notCounted() []string {
	watched := c.watched()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.snap.Live.Queues)) {
		q := c.snap.Live.Queues[name]
		_, delays := naming.DelaysOf(c.cfg.Prefix, name)
		if (q.Uncounted || q.ReadyOnly) && !q.Hidden && q.Unavailable == "" && (delays || slices.Contains(watched, name)) {
			names = append(names, name)
		}
	}
	return names
}

// countAgain asks the management API again for the counts of queues that it had not counted yet. It reports whether the
// management API has answered.
func (c *collector) countAgain(ctx context.Context, names []string) (answered bool, err error) {
	one, cancel := c.ask(ctx)
	defer cancel()
	queues, err := c.src.Management.Queues(one)
	if err != nil {
		return false, nil // the caller reports the queues as uncounted
	}
	watched := c.watched()
	var current []string
	for _, name := range names {
		now, there := queues[name]
		if !there || now.Unknown() {
			continue
		}
		q := c.snap.Live.Queues[name]
		q.Messages, q.Unacked, q.Leaving = now.Messages, now.Unacked, now.Leaving
		q.Uncounted, q.ReadyOnly = false, false
		c.snap.Live.Queues[name], c.older[name] = q, now.Messages
		if slices.Contains(watched, name) {
			current = append(current, name)
		}
	}
	return true, c.count(ctx, current)
}

// reportNotCounted reports the queues that the management API still has not counted. With Source.Hasty it reports
// nothing, because the next snapshot probably has their counts.
func (c *collector) reportNotCounted() {
	if names := c.notCounted(); len(names) > 0 && !c.src.Hasty {
		some := strings.Join(names[:min(len(names), 3)], ", ")
		c.uncheckedf(doctor.AreaMessages, "the management API has not counted the messages of these queues yet, so the number of messages that are not ready is unknown (%d, such as %s); "+
			"it needs a few seconds after a queue was declared, and never counts if its metrics are disabled (management_agent.disable_metrics_collector)", len(names), some)
	}
}

// watched returns the queues whose counts matter to users. With Source.Delays it also returns the delay queues whose
// ready messages the broker counts.
func (c *collector) watched() []string {
	names := c.kept()
	for _, d := range c.cfg.Want.Destinations {
		names = append(names, d.TargetQueue(c.cfg.Prefix))
	}
	names = append(names, c.snap.Live.Delivered(c.cfg.Want)...)
	for name := range c.snap.Live.Queues {
		layout, _ := naming.LayoutOf(c.cfg.Prefix, name)
		_, delays := naming.DelaysOf(c.cfg.Prefix, name)
		if (c.src.Delays || c.snap.Live.Queues[name].Uncounted) && delays && !layout.Native() || naming.RouteQueue(c.cfg.Prefix, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool {
		q, there := c.snap.Live.Queues[n]
		return !there || c.managed && q.Unavailable != "" // the broker would count such a queue as empty, or not answer for minutes
	})
}

func (c *collector) leaderless(ctx context.Context, names []string) error {
	return Leaderless(ctx, c.src.Dial, c.cfg.Prefix, c.snap.Live.Queues, names, c.managed)
}

// Leaderless finds those of the named queues that AMQP counts as empty because they have no leader, and marks them as
// unavailable. If only the queue's process is gone, the management API does not reveal it either, because it continues
// to show the last known state. Leaderless does not ask delay queues, because that would make their messages late.
// Without the management API (managed is false), it treats the counts of delay queues as unknown if another queue has
// no leader.
func Leaderless(ctx context.Context, dial func(context.Context) (*amqp.Connection, error), prefix string, queues map[string]plan.Queue, names []string, managed bool) error {
	var ask, delays []string
	for _, name := range names {
		q := queues[name]
		_, delay := naming.DelaysOf(prefix, name)
		switch {
		case q.Unknown() || q.Messages+q.Consumers > 0 || managed && q.Type != topology.Quorum:
		case delay && managed:
		case delay:
			delays = append(delays, name)
		default:
			ask = append(ask, name)
		}
	}
	found, err := live.Leaderless(ctx, dial, ask)
	if err != nil {
		return err
	}
	for _, name := range delays {
		if len(found) > 0 {
			found[name] = "not asked, because other queues have no leader"
		}
	}
	for name, why := range found {
		q := queues[name]
		q.Unavailable = why
		queues[name] = q
	}
	return nil
}

func (c *collector) kept() []string {
	var names []string
	for _, q := range c.snap.Live.Kept(c.cfg.Want) {
		names = append(names, q.Name)
	}
	return names
}

func (c *collector) count(ctx context.Context, queues []string) error {
	counted, err := live.Counts(ctx, c.conn, queues)
	busy := false
	for name, n := range counted {
		q := c.snap.Live.Queues[name]
		switch {
		case n.Missing: // deleted in the meantime
			continue
		case n.Unavailable != "":
			q.Unavailable = n.Unavailable
			c.snap.Live.Queues[name] = q
			continue
		case q.Unavailable != "" && n.Ready+n.Consumers == 0: // the broker gives the same counts for a queue without a leader
			continue
		}
		q.ReadyOnly = q.ReadyOnly || q.Uncounted
		q.Unavailable, q.Uncounted = "", false
		if n.Consumers == 0 && q.Type == topology.Quorum { // a quorum queue counts every client with an unacknowledged message as a consumer
			q.Unacked, c.older[name] = 0, n.Ready
		}
		q.Messages, q.Consumers = n.Ready+q.Unacked+q.Leaving, n.Consumers
		c.snap.Live.Queues[name] = q
		busy = busy || n.Consumers > 0
		c.visited[name] = false
	}
	if busy && c.managed {
		c.consumers(ctx)
	}
	return err
}

// consumers recounts the consumers of dead-letter queues without those of requeue runs, which are temporary.
func (c *collector) consumers(ctx context.Context) {
	kept := map[string]int64{}
	for _, name := range c.kept() {
		if c.snap.Live.Queues[name].Consumers > 0 {
			kept[name] = 0
		}
	}
	ctx, cancel := c.ask(ctx)
	defer cancel()
	var list []struct {
		Queue struct {
			Name string `json:"name"`
		} `json:"queue"`
		Tag string `json:"consumer_tag"`
	}
	if len(kept) == 0 {
		return
	}
	if _, ok := c.get(ctx, c.src.Management.InVhost("consumers")+"?columns=queue,consumer_tag", &list); !ok {
		return
	}
	for _, x := range list {
		if n, ok := kept[x.Queue.Name]; ok && !strings.HasPrefix(x.Tag, naming.RequeueConsumer) {
			kept[x.Queue.Name] = n + 1
		}
	}
	for name, n := range kept {
		q := c.snap.Live.Queues[name]
		c.visited[name] = q.Consumers > n
		q.Consumers = n
		c.snap.Live.Queues[name] = q
	}
}

// held returns the dead-letter queues whose counts are not final, for one of two reasons. Either no message is ready
// but an older count is above 0, which means that the messages are unacknowledged or gone. Or a requeue run is
// consuming and an older count is higher, which means that the messages that it holds are not counted yet.
func (c *collector) held() []string {
	return slices.DeleteFunc(c.kept(), func(n string) bool {
		q := c.snap.Live.Queues[n]
		switch {
		case q.Consumers > 0:
			return true
		case c.visited[n]:
			return q.Unacked > 0 || q.Ready() > 0 && c.older[n] <= q.Messages
		case q.Ready() > 0:
			return true
		}
		return c.older[n] == 0
	})
}

// doubt marks the dead-letter queues whose counts may still change, for callers that do not wait for the final counts.
// The messages of such a queue may be gone or held by a client, so their number is unknown rather than 0.
func (c *collector) doubt() {
	for _, name := range c.held() {
		q := c.snap.Live.Queues[name]
		q.Doubtful = true
		c.snap.Live.Queues[name] = q
	}
}

// recount asks the management API again, once for all queues if there are several. For a route queue it keeps the
// lowest count, because a queue that messages only pass through is sometimes empty.
func (c *collector) recount(ctx context.Context, routes, held []string) {
	names := slices.Concat(routes, held)
	if len(names) == 0 {
		return
	}
	ctx, cancel := c.ask(ctx)
	defer cancel()
	var found map[string]plan.Queue
	if len(names) > 1 {
		found, _ = c.src.Management.Queues(ctx) // if it fails, the earlier counts stay
	} else if q, err := c.src.Management.Queue(ctx, names[0]); err == nil && q != nil {
		found = map[string]plan.Queue{names[0]: *q}
	}
	for _, name := range names {
		now, there := found[name]
		if !there || now.Unknown() {
			continue
		}
		q := c.snap.Live.Queues[name]
		q.ReadyOnly = false
		c.older[name] = now.Messages
		if slices.Contains(held, name) || now.Messages < q.Messages {
			q.Messages, q.Unacked, q.Leaving = now.Messages, now.Unacked, now.Leaving
		}
		c.snap.Live.Queues[name] = q
	}
}

// lookEvery is the interval at which watched delay queues are counted.
const lookEvery = 200 * time.Millisecond

// standstill counts the messages in the delay queues, and repeats this while a relevant queue may stand still. A queue
// whose count falls does not stand still.
func (c *collector) standstill(ctx context.Context) error {
	if c.src.Standstill == nil {
		return nil
	}
	w := watch{collector: c, delays: doctor.Delays(c.cfg, c.snap.Live)}
	first := doctor.Observation{All: true}
	if c.managed && c.uncounted == "" {
		first.Figures, first.Read = w.figures(c.snap.Live.Queues), c.inspected
	}
	busy, err := w.look(ctx, slices.Sorted(maps.Keys(w.delays)), first)
	if err != nil {
		return err
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var decidable time.Time // when all open queues had been watched for long enough
	for {
		open, waiting := c.src.Standstill.Open(w.delays, c.src.Watch)
		switch {
		case len(open) == 0:
			c.snap.Standing = c.src.Standstill.Found()
			return nil
		case waiting < len(open):
			decidable = time.Time{}
		case !c.managed || c.uncounted != "":
			why := c.uncounted
			if !c.managed {
				why = "deciding this needs the management API"
			}
			some := strings.Join(open[:min(len(open), 3)], ", ")
			c.uncheckedf(doctor.AreaStandstill, "delay queues whose count has not fallen for longer than their TTL (%d, such as %s) either keep messages, or receive as many as they deliver; it is unknown which: %s", len(open), some, why)
			return nil
		case decidable.IsZero():
			decidable = time.Now()
		case time.Since(decidable) > doctor.FiguresLag+lookEvery:
			read := time.Now()
			one, cancel := context.WithTimeout(ctx, inspectionPatience)
			queues, err := c.src.Management.Queues(one)
			cancel()
			if err != nil {
				c.uncheckedf(doctor.AreaStandstill, "%s", oneLine(err))
				return nil
			}
			if _, err := w.look(ctx, busy, doctor.Observation{Figures: w.figures(queues), Read: read}); err != nil {
				return err
			}
			c.snap.Standing = c.src.Standstill.Found()
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if _, err := w.look(ctx, busy, doctor.Observation{}); err != nil {
			return err
		}
	}
}

type watch struct {
	*collector

	delays map[string]doctor.Delay
}

func (w watch) figures(queues map[string]plan.Queue) map[string]doctor.Figures {
	out := make(map[string]doctor.Figures, len(w.delays))
	for name := range w.delays {
		q := queues[name]
		out[name] = doctor.Figures{Ready: q.Ready(), Leaving: q.Leaving, Published: q.Published}
	}
	return out
}

// look counts the ready messages of queues, adds them to Source.Standstill, and returns the queues that have messages.
func (w watch) look(ctx context.Context, names []string, l doctor.Observation) (busy []string, err error) {
	l.At, l.Ready = time.Now(), map[string]int64{}
	counts, err := live.Counts(ctx, w.conn, names)
	if err != nil {
		return nil, err
	}
	for name, n := range counts {
		l.Ready[name] = n.Ready
		if n.Ready > 0 {
			busy = append(busy, name)
		}
	}
	w.src.Standstill.Take(w.delays, l)
	return busy, nil
}
