package taskview

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/alike"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Limits of Store.ErrorGroups.
const (
	// DefaultGroups and MaxGroups are the default and the maximum of ErrorGroupOptions.Limit.
	DefaultGroups, MaxGroups = 50, 1000
	// DefaultSample and MaxSample are the default and the maximum of ErrorGroupOptions.Sample.
	DefaultSample, MaxSample = 100_000, 10_000_000
)

// ErrorGroupOrder is an order of ErrorGroups.
type ErrorGroupOrder string

// The orders in which ErrorGroups can return groups.
const (
	GroupsNewest ErrorGroupOrder = "newest" // groups of the tasks that ended last come first
	GroupsOldest ErrorGroupOrder = "oldest" // groups of the tasks that ended first come first
	GroupsMost   ErrorGroupOrder = "most"   // the largest groups come first
)

// ErrorGroupOptions contains the options for Store.ErrorGroups. The zero value is ready to use.
type ErrorGroupOptions struct {
	// Limit is the largest number of groups to return. The default is DefaultGroups, the maximum MaxGroups.
	Limit int
	// Order is the order of the groups. The default is GroupsNewest.
	Order ErrorGroupOrder
	// Sample is the largest number of tasks to read, the newest first. The default is DefaultSample, the maximum
	// MaxSample. ErrorGroups.More reports whether there are more tasks.
	Sample int
}

// ErrorGroups are tasks grouped by their errors.
type ErrorGroups struct {
	Sampled int          `json:"sampled"` // tasks that were read
	More    bool         `json:"more"`    // whether there are older tasks that were not read, so that groups may be larger than Tasks says
	Groups  []ErrorGroup `json:"groups"`  // in the order of ErrorGroupOptions
	Others  int          `json:"others"`  // tasks of groups that are not returned, because there are more than Limit
}

// ErrorGroup is a group of tasks with the same destination and similar errors. If ErrorLike is not empty, a Filter with
// the Queue or Exchange and the ErrorLike of a group, and with the status that was grouped, selects exactly the group's
// tasks.
type ErrorGroup struct {
	Queue     string    `json:"queue,omitempty"`
	Exchange  string    `json:"exchange,omitempty"`
	ErrorLike string    `json:"error_like"` // without numbers, ids and quoted parts; empty if the tasks have no error
	Tasks     int       `json:"tasks"`
	First     time.Time `json:"first"`      // when the first task ended, or is due if the tasks have not ended
	Last      time.Time `json:"last"`       // when the last task ended, or is due
	ExampleID string    `json:"example_id"` // the last task
	Example   string    `json:"example"`    // the error of that task
}

// ErrorGroups groups the tasks that the filter selects by destination and error. Without a status it groups failed
// tasks. Use StatusPending for the errors of attempts that will be retried. Tasks that change in the meantime may or
// may not be counted. It returns ErrConfig for invalid arguments.
func (s *Store) ErrorGroups(ctx context.Context, f schedule.Filter, o ErrorGroupOptions) (ErrorGroups, error) {
	o.Limit, o.Sample, o.Order = cmp.Or(o.Limit, DefaultGroups), cmp.Or(o.Sample, DefaultSample), cmp.Or(o.Order, GroupsNewest)
	switch {
	case o.Limit < 1 || o.Limit > MaxGroups:
		return ErrorGroups{}, fmt.Errorf("%w: grouping tasks: limit is %d; expected 1 to %d", schedule.ErrConfig, o.Limit, MaxGroups)
	case o.Sample < 1 || o.Sample > MaxSample:
		return ErrorGroups{}, fmt.Errorf("%w: grouping tasks: sample is %d; expected 1 to %d", schedule.ErrConfig, o.Sample, MaxSample)
	case groupedBy[o.Order] == nil:
		return ErrorGroups{}, fmt.Errorf("%w: grouping tasks: order is %q; expected %s, %s or %s", schedule.ErrConfig, string(o.Order), GroupsNewest, GroupsOldest, GroupsMost)
	}
	f.Status = cmp.Or(f.Status, schedule.StatusFailed)
	return filtered(ctx, s, f, "grouping tasks by error", func(c rows.Conn, f rows.Filter) (ErrorGroups, error) {
		ended := f.Status != rows.Pending && f.Status != rows.Running
		groups := map[groupKey]*ErrorGroup{}
		read, more, err := c.Failures(ctx, f, ended, o.Sample, func(t rows.Unsuccessful) { addToGroup(groups, t) })
		out := ErrorGroups{Sampled: read, More: more, Groups: []ErrorGroup{}}
		for i, g := range sortedGroups(groups, o.Order) {
			if i < o.Limit {
				out.Groups = append(out.Groups, *g)
			} else {
				out.Others += g.Tasks
			}
		}
		return out, err
	})
}

type groupKey struct{ queue, exchange, like string }

// addToGroup adds a task to its group. Tasks must be added from the newest to the oldest.
func addToGroup(groups map[groupKey]*ErrorGroup, t rows.Unsuccessful) {
	k := groupKey{t.Queue, t.Exchange, alike.Text(t.LastError)}
	g := groups[k]
	if g == nil {
		g = &ErrorGroup{
			Queue: t.Queue, Exchange: t.Exchange, ErrorLike: k.like, ExampleID: t.ID, Example: t.LastError, First: t.At.UTC(), Last: t.At.UTC(),
		}
		groups[k] = g
	}
	g.Tasks++
	if t.At.Before(g.First) {
		g.First = t.At.UTC()
	}
}

// groupedBy maps an order to the sort key of a group. The group with the largest key comes first.
var groupedBy = map[ErrorGroupOrder]func(*ErrorGroup) int64{
	GroupsNewest: func(g *ErrorGroup) int64 { return g.Last.UnixMilli() },
	GroupsOldest: func(g *ErrorGroup) int64 { return -g.First.UnixMilli() },
	GroupsMost:   func(g *ErrorGroup) int64 { return int64(g.Tasks) },
}

func sortedGroups(groups map[groupKey]*ErrorGroup, order ErrorGroupOrder) []*ErrorGroup {
	list := make([]*ErrorGroup, 0, len(groups))
	for _, g := range groups {
		list = append(list, g)
	}
	by := groupedBy[order]
	slices.SortFunc(list, func(a, b *ErrorGroup) int {
		return cmp.Or(cmp.Compare(by(b), by(a)), cmp.Compare(b.Tasks, a.Tasks),
			cmp.Compare(a.Queue+a.Exchange, b.Queue+b.Exchange), cmp.Compare(a.ErrorLike, b.ErrorLike))
	})
	return list
}
