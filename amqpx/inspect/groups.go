package inspect

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/alike"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Limits of GroupErrors.
const (
	DefaultGroups = 50
	MaxGroups     = 1000

	groupPortion = 1000    // maximum number of messages held by one consumer
	maxExample   = 4 << 10 // bytes of an error's text
)

// GroupOrder is the sort order of groups.
type GroupOrder string

// The sort orders of groups.
const (
	GroupsNewest GroupOrder = "newest" // groups with the newest dead letters first
	GroupsOldest GroupOrder = "oldest" // groups with the oldest dead letters first
	GroupsMost   GroupOrder = "most"   // largest groups first
)

// GroupOptions configures GroupErrors.
type GroupOptions struct {
	// Limit is the maximum number of groups that are returned; the default is DefaultGroups, the maximum MaxGroups.
	Limit int
	// Order is the sort order of the groups; the default is GroupsNewest.
	Order GroupOrder
	// Prefix is the prefix of the delay objects; the default is topology.DefaultPrefix.
	Prefix string
	// Management is used to read the queue's type and delivery limit. Without it, GroupErrors only examines queues on
	// RabbitMQ 4.3 and later.
	Management *live.Management
	// Progress is called after each batch of messages.
	Progress func(looked, total int)
}

// ErrorGroups is the result of GroupErrors: the messages of a queue, grouped by their errors.
type ErrorGroups struct {
	Queue   string       `json:"queue"`
	Total   int          `json:"total"`   // messages that were ready when the call began; no more are examined
	Sampled int          `json:"sampled"` // how many of them were examined; fewer if another consumer received some
	Groups  []ErrorGroup `json:"groups"`
	// Others counts messages in groups that are not returned because there are more groups than GroupOptions.Limit. If
	// there are more than MaxGroups groups, the smaller groups found so far are dropped during the run, so even a group
	// that is returned may have messages that are only counted here. AtLeast reports that case.
	Others  int  `json:"others"`
	AtLeast bool `json:"at_least,omitempty"`
	// Notes describe side effects on the queue, and why the result may be incomplete.
	Notes []string `json:"notes,omitempty"`
}

// ErrorGroup is a group of messages that have the same destination, died for the same reason and have similar errors.
// To select them for Requeue, use a DeadLetterFilter with the group's Destinations, Reasons and ErrorLike.
type ErrorGroup struct {
	Destination string     `json:"destination"`          // a queue, or "exchange:routing key"; empty if unknown
	Reason      string     `json:"reason"`               // empty for messages that are not dead letters
	ErrorLike   string     `json:"error_like"`           // the errors as Alike returns them; empty if no error is known
	Messages    int        `json:"messages"`             // the number of messages
	First       *time.Time `json:"first,omitempty"`      // when the first of them died; nil if unknown
	Last        *time.Time `json:"last,omitempty"`       // when the last of them died; nil if unknown
	ExampleID   string     `json:"example_id,omitempty"` // id of the newest message
	Example     string     `json:"example,omitempty"`    // the newest message's error, up to 4 KiB
	Attempt     int        `json:"attempt"`              // the newest message's last attempt
	Task        bool       `json:"task,omitempty"`       // the newest message belongs to a task
}

// GroupErrors reads a whole queue and groups its messages by their errors. It holds every message until it has seen the
// last one, and then puts all of them back. They keep their order, except in a quorum queue before RabbitMQ 4.0. Memory
// use does not grow with the queue, because only the groups are kept and not the messages.
//
// It has the same side effects as Peek, on all messages of the queue. It neither acknowledges messages nor uses up a
// delivery limit; a queue in which reading would use up the limit is refused with a *PeekError. Afterwards the messages
// have the redelivered flag, and RabbitMQ before 4.3 has counted a delivery in x-delivery-count. Until the messages are
// put back, consumers do not get them, and the broker tracks each message that is held, which costs it some hundred
// bytes of memory. Two concurrent calls share the messages, and each sees only part of them (Sampled).
//
// When ctx ends, everything is put back. If the process or the connection ends before that, the broker puts the
// messages back and counts a delivery, which RabbitMQ 4.0 and later compares with a delivery limit. The same happens if
// the call takes longer than the broker's consumer timeout (30 min). Errors are the same as for Peek.
func GroupErrors(ctx context.Context, conn *amqp.Connection, queue string, o GroupOptions) (ErrorGroups, error) {
	if o.Limit < 0 || o.Limit > MaxGroups {
		return ErrorGroups{}, fmt.Errorf("group %s: limit %d; expected 1 to %d, or 0 for %d", queue, o.Limit, MaxGroups, DefaultGroups)
	}
	o.Limit, o.Order, o.Prefix = cmp.Or(o.Limit, DefaultGroups), cmp.Or(o.Order, GroupsNewest), cmp.Or(o.Prefix, topology.DefaultPrefix)
	if groupOrders[o.Order] == nil {
		return ErrorGroups{}, fmt.Errorf("group %s: order %q; expected %s, %s or %s", queue, o.Order, GroupsNewest, GroupsOldest, GroupsMost)
	}
	if err := mayPeek(ctx, conn, queue, PeekOptions{Prefix: o.Prefix, Management: o.Management}); err != nil {
		return ErrorGroups{}, err
	}
	g := grouping{o: o, out: ErrorGroups{Queue: queue}, groups: map[groupKey]*ErrorGroup{}}
	if err := g.look(ctx, conn); err != nil {
		return ErrorGroups{}, fmt.Errorf("group %s: %w", queue, err)
	}
	return g.result(wire.Version(wire.Broker(conn))), nil
}

// grouping is the state of one GroupErrors call.
type grouping struct {
	o      GroupOptions
	out    ErrorGroups
	groups map[groupKey]*ErrorGroup
}

type groupKey struct{ destination, reason, like string }

// look takes all messages and puts them back.
func (g *grouping) look(ctx context.Context, conn *amqp.Connection) error {
	forced, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	t := taker{queue: g.out.Queue, forced: forced}
	q, err := countReady(ctx, conn, g.out.Queue)
	if err != nil {
		return err
	}
	g.out.Total = q.Messages
	if t.ch, err = wait.Value(ctx, conn.Channel); err != nil {
		return err
	}
	defer wire.CloseChannel(forced, t.ch) // the broker does not answer while the queue does not
	p := portions{most: groupPortion}
	for err == nil && g.out.Sampled < g.out.Total {
		var list []amqp.Delivery
		list, err = t.receive(ctx, min(p.next(), g.out.Total-g.out.Sampled))
		for i := range list {
			p.saw(&list[i])
			g.add(ReadDeadLetter(list[i], g.out.Queue, g.o.Prefix))
		}
		if len(list) == 0 {
			break
		}
		if g.o.Progress != nil {
			g.o.Progress(g.out.Sampled, g.out.Total)
		}
	}
	if g.out.Sampled == 0 || t.ch.IsClosed() {
		return err
	}
	return cmp.Or(err, t.putBack())
}

// NormalizeError returns the text of an error without the parts that differ between two messages that failed for the
// same reason. Numbers and ids become #, including the unit of time or the colons and points between numbers. Quoted
// parts become "…", and white space becomes one space. Only the first 1,024 bytes are used.
//
//	order 42 was not found       order # was not found
//	dial tcp 10.0.0.7:5432: …    dial tcp #: …
//	no such user: "Ann" (3f2a9c1e-…)  no such user: … (#)
func NormalizeError(text string) string { return alike.Text(text) }

// add adds a message to its group.
func (g *grouping) add(l DeadLetter) {
	g.out.Sampled++
	k := groupKey{l.Destination.String(), l.Reason, NormalizeError(l.Error)}
	x := g.groups[k]
	if x == nil {
		if len(g.groups) >= MaxGroups { // drop the smaller half to make space
			for _, x := range g.sorted(GroupsMost)[MaxGroups/2:] {
				g.out.Others += x.Messages
				delete(g.groups, groupKey{x.Destination, x.Reason, x.ErrorLike})
			}
			g.out.AtLeast = true
		}
		x = &ErrorGroup{Destination: k.destination, Reason: k.reason, ErrorLike: k.like}
		g.groups[k] = x
	}
	x.Messages++
	at := l.Died.UTC()
	if !at.IsZero() && (x.First == nil || at.Before(*x.First)) {
		x.First = &at
	}
	if x.Last == nil || !at.Before(*x.Last) {
		x.ExampleID, x.Attempt, x.Task = l.ID, l.Attempt, l.Version != 0
		x.Example = strings.ToValidUTF8(l.Error[:min(len(l.Error), maxExample)], "")
		if !at.IsZero() {
			x.Last = &at
		}
	}
}

// groupOrders maps each order to a function that returns a group's sort key. Groups are sorted by that key in
// descending order.
var groupOrders = map[GroupOrder]func(*ErrorGroup) int64{
	GroupsNewest: func(x *ErrorGroup) int64 { return milli(x.Last, math.MinInt64) },
	GroupsOldest: func(x *ErrorGroup) int64 { return -milli(x.First, math.MaxInt64) },
	GroupsMost:   func(x *ErrorGroup) int64 { return int64(x.Messages) },
}

func milli(at *time.Time, unknown int64) int64 {
	if at == nil {
		return unknown
	}
	return at.UnixMilli()
}

func (g *grouping) sorted(order GroupOrder) []*ErrorGroup {
	list := make([]*ErrorGroup, 0, len(g.groups))
	for _, x := range g.groups {
		list = append(list, x)
	}
	by := groupOrders[order]
	slices.SortFunc(list, func(a, b *ErrorGroup) int {
		return cmp.Or(cmp.Compare(by(b), by(a)), cmp.Compare(b.Messages, a.Messages),
			cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.ErrorLike, b.ErrorLike))
	})
	return list
}

// result returns the groups in the requested order.
func (g *grouping) result(version plan.Version) ErrorGroups {
	out := g.out
	out.Groups = []ErrorGroup{}
	for i, x := range g.sorted(g.o.Order) {
		if i < g.o.Limit {
			out.Groups = append(out.Groups, *x)
		} else {
			out.Others += x.Messages
		}
	}
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	if out.Sampled < out.Total {
		note("only %d of %d messages were examined: other consumers hold the rest, or have removed them", out.Sampled, out.Total)
	}
	if out.Sampled > 0 && version.Before(4, 0, 0) {
		note("before RabbitMQ 4.0, a quorum queue puts the messages that were read at its end, possibly in another order")
	}
	return out
}
