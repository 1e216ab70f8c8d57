package schedule

import (
	"context"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// Backlog contains counts of waiting tasks. Reading it is cheap, however many tasks the table has.
type Backlog struct {
	// At is when the backlog was read, by the database's clock.
	At time.Time
	// Oldest is the earliest due time of the pending tasks that are due, or zero if none is due. Oldest and Overdue
	// leave out the tasks that Paused and Throttled count.
	Oldest time.Time
	// Overdue counts the pending tasks that are due, sent or not.
	Overdue int64
	// Paused counts the tasks that are due and wait because their destination is paused.
	Paused int64
	// Throttled counts the tasks that are due but wait because their destination's rate limit is used up, or because
	// they are spread over time after a pause.
	Throttled int64
	// Unsent counts the tasks that Run should have sent by now. They are pending, due or due within Config.Horizon, and
	// were never sent in their current version. It leaves out Paused and Throttled, tasks that become due within 5
	// seconds, and tasks of a destination with a rate limit that are not due.
	Unsent int64
	// Within counts the pending tasks between the given horizons. Each element counts tasks that are due after the
	// previous horizon (after At for the first element) and not after this one. The last element counts the tasks that
	// are due after the last horizon.
	Within []int64
}

// mostLanes is the maximum number of lanes whose tasks Backlog counts separately. A lane is a queue, or an exchange
// with all its routing keys.
const mostLanes = 1000

// Backlog counts waiting tasks. The horizons must be in ascending order. The parameter most, at least 1, caps each
// count, and therefore the number of index entries that are read. A count equal to most means "most or more". Unsent
// counts the tasks of up to 1000 destinations. While any destination is paused or has a rate limit, Oldest, Overdue,
// Paused and Throttled are also limited to the tasks of 1000 destinations.
func (s *Store) Backlog(ctx context.Context, horizons []time.Duration, most int64) (Backlog, error) {
	return reading(ctx, s, NoTx, Filter{}, "reading the backlog", func(c rows.Conn, _ rows.Filter) (Backlog, error) {
		return s.backlog(ctx, c, horizons, most)
	})
}

func (s *Store) backlog(ctx context.Context, c rows.Conn, horizons []time.Duration, most int64) (b Backlog, err error) {
	now := s.nowOn(ctx, c).UnixMilli()
	b.At = time.UnixMilli(now)
	paused, limited, err := s.heldLanes(ctx, c)
	if err != nil {
		return b, err
	}
	if len(paused)+len(limited) > 0 {
		err = s.overdueByLane(ctx, c, &b, paused, limited, most)
	} else if b.Oldest, err = c.Oldest(ctx, now); err == nil {
		b.Overdue, err = c.CountPending(ctx, -rows.MaxDue, now, most)
	}
	if err != nil {
		return b, err
	}
	ends := make([]int64, 0, len(horizons)+1)
	for _, h := range horizons {
		ends = append(ends, now+h.Milliseconds())
	}
	after := now
	for _, until := range append(ends, rows.MaxDue) {
		n, err := c.CountPending(ctx, after, until, most)
		if err != nil {
			return b, err
		}
		b.Within, after = append(b.Within, n), until
	}
	// Count lane by lane, like a claim, because the index is ordered by lane.
	soon, until := now+relay.Soon.Milliseconds(), now+s.cfg.Horizon.Milliseconds()
	lanes, err := c.Lanes(ctx, rows.ToSend, until)
	for _, l := range lanes[:min(len(lanes), mostLanes)] {
		if b.Unsent >= most {
			break
		}
		x := limited[l.Lane]
		if paused[l.Lane] || x != nil && x.Busy {
			continue
		}
		n, err := c.CountUnsent(ctx, l.Lane, -rows.MaxDue, now, most-b.Unsent)
		if err != nil {
			return b, err
		}
		b.Unsent += n
		if x != nil {
			continue
		}
		if n, err = c.CountUnsent(ctx, l.Lane, soon, until, most-b.Unsent); err != nil {
			return b, err
		}
		b.Unsent += n
	}
	return b, err
}

// overdueByLane counts due tasks lane by lane. This is necessary if some lanes are paused or limited, because their
// tasks are counted separately.
func (s *Store) overdueByLane(ctx context.Context, c rows.Conn, b *Backlog, paused map[rows.Lane]bool, limited map[rows.Lane]*DestinationState, most int64) error {
	now := b.At.UnixMilli()
	lanes, err := c.PendingLanes(ctx)
	if err != nil {
		return err
	}
	for _, l := range lanes[:min(len(lanes), mostLanes)] {
		due, err := c.CountDue(ctx, l, now, most)
		if err != nil {
			return err
		}
		if paused[l] {
			b.Paused = min(b.Paused+due, most)
			continue
		}
		busy := limited[l] != nil && limited[l].Busy
		if busy {
			n, err := c.CountUnsent(ctx, l, -rows.MaxDue, now, most)
			if err != nil {
				return err
			}
			b.Throttled, due = min(b.Throttled+n, most), max(due-n, 0)
		}
		b.Overdue = min(b.Overdue+due, most)
		oldest, err := c.OldestOf(ctx, l, busy, now)
		if err != nil {
			return err
		}
		if !oldest.IsZero() && (b.Oldest.IsZero() || oldest.Before(b.Oldest)) {
			b.Oldest = oldest
		}
	}
	return nil
}
