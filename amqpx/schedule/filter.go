package schedule

import (
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Filter selects the tasks that match all of its conditions. The zero value selects all tasks.
type Filter struct {
	Queue    string
	Exchange string
	Status   Status
	DueFrom  time.Time // inclusive
	DueTo    time.Time // exclusive
	IDPrefix string
	// IDs selects the tasks with one of these ids, at most 1000. If it is empty, any id matches.
	IDs []string
	Tag string // tasks that have this tag
	// UniqueKey selects the tasks with this unique key, of which at most one is pending.
	UniqueKey string
	// Header and HeaderValue select the tasks that have this header. Headers are not indexed, so combine the two with
	// other conditions if there are many tasks.
	Header, HeaderValue string
	// Error selects the tasks whose LastError contains this text. ErrorLike selects the tasks whose LastError differs
	// from this text at most in numbers, ids and quoted parts. Neither is indexed, so all tasks that match the other
	// conditions are read. Combine them with a status and a destination if there are many tasks.
	Error, ErrorLike string

	// The other fields apply to List only.
	Sort  Sort   // the order; the zero value is SortDue
	After Cursor // start after this task, see CursorOf
	Limit int    // the largest number of tasks; 0 for all
	// WithoutBody leaves Body empty, which avoids reading it.
	WithoutBody bool
	// Unheld leaves out tasks that are deliberately not sent: the tasks of paused destinations, and tasks that wait
	// because a rate limit is used up or because they are spread over time after a pause. It requires a Limit. The
	// remaining tasks are those that should already have been sent.
	Unheld bool
}

// rowFilter converts the filter for package rows. It returns an error for an unknown status, for too many ids, and for
// times that are probably in the wrong unit, because they would select all tasks or none.
func (f Filter) rowFilter() (rows.Filter, error) {
	for _, x := range []struct{ field, reason string }{{"DueFrom", units.Instant(f.DueFrom)}, {"DueTo", units.Instant(f.DueTo)}} {
		if x.reason != "" {
			return rows.Filter{}, fmt.Errorf("%s: %s", x.field, x.reason)
		}
	}
	chosen := rows.Filter{
		IDs: f.IDs, Queue: f.Queue, Exchange: f.Exchange, Status: string(f.Status), DueFrom: f.DueFrom, DueTo: f.DueTo,
		IDPrefix: f.IDPrefix, Tag: f.Tag, UniqueKey: f.UniqueKey, Header: f.Header, HeaderValue: f.HeaderValue, Error: f.Error, ErrorLike: f.ErrorLike,
	}
	return chosen, chosen.Check()
}

// Sort is the order in which List returns tasks. Tasks with the same time are sorted by id.
type Sort string

// The orders of List. SortEnded and SortEndedLast leave out tasks that have not ended. SortDueLast
// leaves out tasks that another program wrote without a valid due time.
const (
	SortDue       Sort = ""           // by due time, earliest first
	SortDueLast   Sort = "due-last"   // by due time, latest first
	SortEnded     Sort = "ended"      // by the time they ended, earliest first
	SortEndedLast Sort = "ended-last" // by the time they ended, latest first
)

func (s Sort) parsed() (rows.Sort, error) {
	switch s {
	case SortDue, SortDueLast, SortEnded, SortEndedLast:
		return rows.Sort{Ended: s == SortEnded || s == SortEndedLast, Last: s == SortDueLast || s == SortEndedLast}, nil
	}
	return rows.Sort{}, fmt.Errorf("sort is %q, expected none, %s, %s or %s", string(s), SortDueLast, SortEnded, SortEndedLast)
}

// Cursor is an opaque position in the order of List. The zero value is the beginning.
type Cursor string

// CursorOf returns the position of a task in the order of the filter.
func (f Filter) CursorOf(t TaskRow) Cursor {
	at := t.DeliverAt
	if s, err := f.Sort.parsed(); err == nil && s.Ended {
		at = t.FinishedAt
	}
	return Cursor(rows.Place{DeliverAt: at, ID: t.ID}.String())
}
