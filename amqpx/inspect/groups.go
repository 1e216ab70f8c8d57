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

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/alike"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/wait"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// Bounds of GroupErrors.
const (
	DefaultGroups = 50
	MaxGroups     = 1000

	groupPortion = 1000    // messages that are held by one consumer, at most
	maxExample   = 4 << 10 // bytes of an error's text
)

// GroupOrder is an order of groups.
type GroupOrder string

// Orders of groups.
const (
	GroupsNewest GroupOrder = "newest" // those of the newest dead letters first
	GroupsOldest GroupOrder = "oldest" // those of the oldest dead letters first
	GroupsMost   GroupOrder = "most"   // the largest first
)

// GroupOptions tune GroupErrors.
type GroupOptions struct {
	// Limit is how many groups are returned; default DefaultGroups, at most MaxGroups.
	Limit int
	// Order of the groups; default GroupsNewest.
	Order GroupOrder
	// Prefix of the delay objects; default topology.DefaultPrefix.
	Prefix string
	// Management has the type and the delivery limit of the queue. Without it queues are looked through from
	// RabbitMQ 4.3 on only.
	Management *live.Management
	// Progress is called after every portion of messages.
	Progress func(looked, total int)
}

// ErrorGroups are the messages of a queue by their error.
type ErrorGroups struct {
	Queue  string       `json:"queue"`
	Total  int          `json:"total"`     // ready at the beginning; no more are looked at
	Looked int          `json:"looked_at"` // of them; fewer if somebody else had some
	Groups []ErrorGroup `json:"groups"`
	// Others are messages of groups that are not returned, because there are more than GroupOptions.Limit. Beyond
	// MaxGroups the smallest groups of those seen so far are given up for others, so that a group that is
	// returned may have some here too: AtLeast.
	Others  int  `json:"others"`
	AtLeast bool `json:"at_least,omitempty"`
	// Notes are what the look has disturbed.
	Notes []string `json:"notes,omitempty"`
}

// ErrorGroup is messages that belong to one destination, and died for one reason and of errors that are alike. A
// DeadLetterFilter with Destinations, Reasons and ErrorLike of a group chooses them, for Requeue.
type ErrorGroup struct {
	Destination string     `json:"destination"`          // a queue, or "exchange:routing key"; empty if unknown
	Reason      string     `json:"reason"`               // empty for what is no dead letter
	ErrorLike   string     `json:"error_like"`           // Alike of the errors; empty if none is known
	Messages    int        `json:"messages"`             // how many
	First       *time.Time `json:"first,omitempty"`      // when the first of them came to lie there; nil: unknown
	Last        *time.Time `json:"last,omitempty"`       // and the last
	ExampleID   string     `json:"example_id,omitempty"` // of the newest
	Example     string     `json:"example,omitempty"`    // its error, up to 4 KiB
	Attempt     int        `json:"attempt"`              // its last one
	Task        bool       `json:"task,omitempty"`       // it is a task's
}

// GroupErrors looks through a whole queue and groups its messages by their errors. It holds every message until
// it has seen the last, and then puts all of them back, in their order except in a quorum queue before RabbitMQ
// 4.0. Its memory does not grow with the queue: it keeps groups, and no messages.
//
// What a look changes is what Peek changes, for all messages: it acknowledges none and spends no delivery limit
// (a queue in which it would, is refused with a *PeekError), the messages have the redelivered flag afterwards,
// and RabbitMQ before 4.3 counts a delivery in x-delivery-count. While it looks, consumers do not get them, and
// the broker remembers each that is held, which costs it some hundred bytes of memory. Two looks at the same time
// share the messages, and each sees a part (Looked).
//
// When ctx ends, everything is put back. If the process or the connection ends in between, the broker puts the
// messages back and counts a delivery, which RabbitMQ from 4.0 on compares with a delivery limit. A look that
// takes longer than the broker's consumer timeout (30 min) ends so. Errors are those of Peek.
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

// grouping is one look through a queue.
type grouping struct {
	o      GroupOptions
	out    ErrorGroups
	groups map[groupKey]*ErrorGroup
}

type groupKey struct{ destination, reason, like string }

// look takes all messages, and puts them back.
func (g *grouping) look(ctx context.Context, conn *amqp.Connection) error {
	forced, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	t := taker{queue: g.out.Queue, forced: forced}
	var err error
	if t.ch, err = wait.Value(ctx, conn.Channel); err != nil {
		return err
	}
	defer func() { _ = t.ch.Close() }()
	q, err := wait.Value(ctx, func() (amqp.Queue, error) {
		return t.ch.QueueDeclarePassive(g.out.Queue, true, false, false, false, nil)
	})
	g.out.Total = q.Messages
	if err == nil && g.out.Total == 0 {
		err = answers(ctx, conn, g.out.Queue)
	}
	p := portions{most: groupPortion}
	for err == nil && g.out.Looked < g.out.Total {
		var list []amqp.Delivery
		list, err = t.receive(ctx, min(p.next(), g.out.Total-g.out.Looked))
		for i := range list {
			p.saw(&list[i])
			g.put(ReadDeadLetter(list[i], g.out.Queue, g.o.Prefix))
		}
		if len(list) == 0 {
			break
		}
		if g.o.Progress != nil {
			g.o.Progress(g.out.Looked, g.out.Total)
		}
	}
	if g.out.Looked == 0 || t.ch.IsClosed() {
		return err
	}
	return cmp.Or(err, t.putBack())
}

// Alike returns the text of an error without what differs between two messages that failed of the same: numbers,
// with the unit of time or the colons and points between them, and ids become #, quoted parts "…", and white space
// one space. Only the first 1,024 bytes count.
//
//	order 42 was not found       order # was not found
//	dial tcp 10.0.0.7:5432: …    dial tcp #: …
//	no such user: "Ann" (3f2a9c1e-…)  no such user: … (#)
func Alike(text string) string { return alike.Text(text) }

// put puts a message into its group.
func (g *grouping) put(l DeadLetter) {
	g.out.Looked++
	k := groupKey{l.Destination.String(), l.Reason, Alike(l.Error)}
	x := g.groups[k]
	if x == nil {
		if len(g.groups) >= MaxGroups { // the smaller half gives room
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

// groupOrders are what a group is sorted by, the largest first.
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

// result returns the groups in their order.
func (g *grouping) result(version observed.Version) ErrorGroups {
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
	if out.Looked < out.Total {
		note("%d of %d messages were seen: somebody else has the others, or has taken them", out.Looked, out.Total)
	}
	if out.Looked > 0 && version.Before(4, 0, 0) {
		note("before RabbitMQ 4.0 a quorum queue puts what was read at its end, and may mix it")
	}
	return out
}
