// Package deadletters groups the messages of a whole queue by their errors, for the errors command, the console and the
// API.
package deadletters

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/alike"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// Limits of GroupErrors.
const (
	DefaultGroups = 50
	MaxGroups     = 1000

	maxExample = 4 << 10 // bytes of an error's text
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
	// Progress is called after every hundredth message, and after the last one.
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
// To select them for inspect.Requeue, use a DeadLetterFilter with the group's Destinations, Reasons and ErrorLike.
type ErrorGroup struct {
	Destination string     `json:"destination"`          // a queue, or "exchange:routing key"; empty if unknown
	Reason      string     `json:"reason"`               // empty for messages that are not dead letters
	ErrorLike   string     `json:"error_like"`           // the errors as alike.Text returns them; empty if no error is known
	Messages    int        `json:"messages"`             // the number of messages
	First       *time.Time `json:"first,omitempty"`      // when the first of them died; nil if unknown
	Last        *time.Time `json:"last,omitempty"`       // when the last of them died; nil if unknown
	ExampleID   string     `json:"example_id,omitempty"` // id of the newest message
	Example     string     `json:"example,omitempty"`    // the newest message's error, up to 4 KiB
	Attempt     int        `json:"attempt"`              // the newest message's last attempt
	Task        bool       `json:"task,omitempty"`       // the newest message belongs to a task
}

// GroupErrors reads a whole queue and groups its messages by their errors. It has the side effects of inspect.Walk, and
// returns its errors. Memory use does not grow with the queue, because only the groups are kept and not the messages.
func GroupErrors(ctx context.Context, conn *amqp.Connection, queue string, o GroupOptions) (ErrorGroups, error) {
	if o.Limit < 0 || o.Limit > MaxGroups {
		return ErrorGroups{}, fmt.Errorf("group %s: limit %d; expected 1 to %d, or 0 for the default of %d", queue, o.Limit, MaxGroups, DefaultGroups)
	}
	o.Limit, o.Order = cmp.Or(o.Limit, DefaultGroups), cmp.Or(o.Order, GroupsNewest)
	if groupOrders[o.Order] == nil {
		return ErrorGroups{}, fmt.Errorf("group %s: order %q; expected %s, %s or %s", queue, o.Order, GroupsNewest, GroupsOldest, GroupsMost)
	}
	g := grouping{o: o, out: ErrorGroups{Queue: queue}, groups: map[groupKey]*ErrorGroup{}}
	p, err := inspect.Walk(ctx, conn, queue, inspect.PeekOptions{Prefix: o.Prefix, Management: o.Management}, func(l inspect.DeadLetter, total int) {
		g.add(l)
		if n := g.out.Sampled; o.Progress != nil && (n%100 == 0 || n == total) {
			o.Progress(n, total)
		}
	})
	if err != nil {
		return ErrorGroups{}, err
	}
	g.out.Total, g.out.Notes = g.out.Sampled+p.More, p.Notes
	return g.result(), nil
}

// grouping is the state of one GroupErrors call.
type grouping struct {
	o      GroupOptions
	out    ErrorGroups
	groups map[groupKey]*ErrorGroup
}

type groupKey struct{ destination, reason, like string }

// add adds a message to its group.
func (g *grouping) add(l inspect.DeadLetter) {
	g.out.Sampled++
	k := groupKey{l.Destination.String(), l.Reason, alike.Text(l.Error)}
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
func (g *grouping) result() ErrorGroups {
	out := g.out
	out.Groups = []ErrorGroup{}
	for i, x := range g.sorted(g.o.Order) {
		if i < g.o.Limit {
			out.Groups = append(out.Groups, *x)
		} else {
			out.Others += x.Messages
		}
	}
	return out
}
