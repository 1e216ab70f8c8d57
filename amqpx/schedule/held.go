package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/units"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/pace"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// longestBy bounds who has paused a destination, in bytes.
const longestBy = 200

// Pause keeps the tasks of a destination, a queue or an exchange with all its routing keys,
// in the table from when ex commits, whichever relays run and start later. by says who did
// it, for people. Recurring tasks go on making theirs. To pause what is paused changes
// nothing. Errors: ErrConfig for a destination that is none, and for one that is not among
// those which may be used, where the sender or Config.Destination lists them; elsewhere Known says
// whether anything of that name is there.
//
// Batches that a relay is publishing at that moment are published. Tasks whose messages are
// with the broker already, waiting for their instant or in the destination's queue, are taken
// back by the relays that run, at most a second or so after the pause and before they are
// due: their messages have no effect then, and the tasks are sent again after the pause. The
// attempts of a task that was waiting for a retry are kept. A handler that has begun ends its
// task. A task that MaxSends has sent more than three times may be handled.
func (s *Store) Pause(ctx context.Context, ex Executor, d topology.Destination, by string) error {
	if len(by) > longestBy || !utf8.ValidString(by) {
		return fmt.Errorf("%w: by: %.300q; expected at most %d bytes of UTF-8", ErrConfig, by, longestBy)
	}
	if err := s.holdable(d); err != nil {
		return err
	}
	err := s.changeGate(ctx, ex, "pausing", d, func(c rows.Conn, g *rows.Gate) error {
		if !g.Paused() {
			g.PausedAt, g.PausedBy = s.nowOn(ctx, c), by
		}
		return nil
	})
	if err != nil {
		return err
	}
	pace.Wrote(s.db.DB)
	return nil
}

// Resume ends a pause when ex commits. What came due meanwhile is sent at once, or at an even
// rate over spread, so that it does not come as a flood; what comes due later is not held up
// by it. A Ceiling holds as well. To resume what is not paused changes nothing. Errors:
// ErrConfig for a destination that is none, or a spread that is negative or above 30 days.
func (s *Store) Resume(ctx context.Context, ex Executor, d topology.Destination, spread time.Duration) error {
	const longest = 30 * 24 * time.Hour
	if spread < 0 || spread > longest {
		return fmt.Errorf("%w: %w", ErrConfig, &topology.FieldError{Field: "spread", Value: spread, Want: "0 to " + topology.FormatDuration(longest)})
	}
	if reason := units.Duration(spread); reason != "" {
		return fmt.Errorf("%w: spread is %s", ErrConfig, reason)
	}
	err := s.changeGate(ctx, ex, "resuming", d, func(c rows.Conn, g *rows.Gate) error {
		if !g.Paused() {
			return nil
		}
		g.PausedAt, g.PausedBy = time.Time{}, ""
		g.SpreadDue, g.SpreadUntil, g.SpreadRate, g.SpreadFree = time.Time{}, time.Time{}, 0, 0
		if spread < time.Second {
			return nil
		}
		now := s.nowOn(ctx, c)
		n, err := c.CountUnsent(ctx, g.Lane, now.UnixMilli(), mostSpread)
		if n > 0 {
			g.SpreadDue, g.SpreadUntil, g.SpreadRate, g.SpreadFree = now, now.Add(spread), float64(n)/spread.Seconds(), now.UnixNano()
		}
		return err
	})
	if err != nil {
		return err
	}
	pace.Wake(s.db.DB)
	return nil
}

// mostSpread bounds what Resume counts. What is beyond is sent when the time is over.
const mostSpread = 10_000_000

// SetCeiling sets, changes or removes the ceiling of a destination when ex commits, for all
// relays of the database. Config.Ceilings do so too when Run begins, unless it was changed by hand
// since a configuration with the same ceiling wrote it. Errors: ErrConfig, as of Pause.
func (s *Store) SetCeiling(ctx context.Context, ex Executor, x Ceiling) error {
	_, err := s.setCeiling(ctx, ex, x, false)
	return err
}

// setCeiling is SetCeiling; a configuration leaves what was changed by hand since it wrote its
// ceiling, which kept reports.
func (s *Store) setCeiling(ctx context.Context, ex Executor, x Ceiling, configured bool) (kept Ceiling, err error) {
	if x, err = x.completed(); err != nil {
		return kept, err
	}
	d := topology.Destination{Queue: x.Queue, Exchange: x.Exchange}
	if err := s.holdable(d); err != nil && x.PerSecond > 0 {
		return kept, err
	}
	err = s.changeGate(ctx, ex, "the ceiling of", d, func(c rows.Conn, g *rows.Gate) error {
		kept = Ceiling{}
		same := g.PerSecond == x.PerSecond && (g.Burst == x.Burst || x.PerSecond == 0)
		if configured {
			if g.FileWrote && g.FilePerSecond == x.PerSecond && g.FileBurst == x.Burst {
				if !same {
					kept = Ceiling{Queue: x.Queue, Exchange: x.Exchange, PerSecond: g.PerSecond, Burst: g.Burst}
				}
				return nil
			}
			g.FileWrote, g.FilePerSecond, g.FileBurst = true, x.PerSecond, x.Burst
		}
		if !same {
			// What the old rate has promised for later is not held against the new one.
			g.PerSecond, g.Burst, g.Free = x.PerSecond, x.Burst, min(g.Free, s.nowOn(ctx, c).Add(time.Second).UnixNano())
		}
		return nil
	})
	if err != nil {
		return kept, err
	}
	pace.Wake(s.db.DB)
	return kept, nil
}

// holdable returns why a destination is not one to which tasks may be sent. An exchange is held back
// with all its routing keys: one that is listed will do.
func (s *Store) holdable(d topology.Destination) error {
	err := s.listed(d)
	if err == nil {
		return nil
	}
	var names []string
	unlisted, ok := errors.AsType[interface {
		error
		Listed() []topology.Destination
	}](err)
	switch {
	case ok:
		for _, l := range unlisted.Listed() {
			if d.Queue == "" && l.Exchange == d.Exchange {
				return nil
			}
			names = append(names, cmp.Or(l.Queue, l.Exchange))
		}
	case d.Queue == "":
		return nil // a check of one's own may refuse only the routing key, which is missing
	}
	return fmt.Errorf("%w: %w%s", ErrConfig, err, naming.DidYouMean(cmp.Or(d.Queue, d.Exchange), names))
}

// Known reports whether a task in the table, finished or not, or a recurring task has the
// destination: a queue, or an exchange with any routing key. What neither has may be a slip of the
// pen, or a destination whose first task is to come.
func (s *Store) Known(ctx context.Context, ex Executor, d topology.Destination) (bool, error) {
	if _, err := laneOf(d); err != nil {
		return false, err
	}
	n, err := s.CountUpTo(ctx, ex, Filter{Queue: d.Queue, Exchange: d.Exchange}, 1)
	if err != nil || n > 0 {
		return n > 0, err
	}
	for r, err := range s.Schedules().List(ctx, ex) {
		if err != nil {
			return false, err
		}
		if r.Task.Queue == d.Queue && r.Task.Exchange == d.Exchange {
			return true, nil
		}
	}
	return false, nil
}

// Waiting returns the destinations of pending tasks, of an exchange without a routing key.
func (s *Store) Waiting(ctx context.Context, ex Executor) ([]topology.Destination, error) {
	return reading(ctx, s, ex, Filter{}, "looking for destinations", func(c rows.Conn, _ rows.Filter) (list []topology.Destination, err error) {
		lanes, err := c.PendingLanes(ctx)
		for _, l := range lanes {
			list = append(list, topology.Destination{Queue: l.Queue, Exchange: l.Exchange})
		}
		return list, err
	})
}

// changeGate changes what holds a destination back; doing says what that is in an error.
func (s *Store) changeGate(ctx context.Context, ex Executor, doing string, d topology.Destination, change func(rows.Conn, *rows.Gate) error) error {
	l, err := laneOf(d)
	if err != nil {
		return err
	}
	err = s.db.Within(ctx, s.on(ex), func(c rows.Conn) error {
		g, err := c.LockGate(ctx, l)
		if err != nil {
			return err
		}
		if err := change(c, g); err != nil {
			return err
		}
		return c.WriteGate(ctx, g)
	})
	if err != nil {
		err = fmt.Errorf("%s %s: %w", doing, d, err)
	}
	return err
}

// DestinationState is what holds a destination's tasks back.
type DestinationState struct {
	// Queue or Exchange is the destination, the latter with all its routing keys.
	Queue    string `json:"queue,omitempty"`
	Exchange string `json:"exchange,omitempty"`
	// PausedAt is since when it is paused, by the database's clock, and PausedBy by whom; zero
	// if it is not.
	PausedAt time.Time `json:"paused_at,omitzero"`
	PausedBy string    `json:"paused_by,omitempty"`
	// PerSecond and Burst are its Ceiling; 0 without one.
	PerSecond float64 `json:"per_second,omitempty"`
	Burst     int     `json:"burst,omitempty"`
	// SpreadUntil is until when what came due in a pause is sent over a time; zero without that.
	SpreadUntil time.Time `json:"spread_until,omitzero"`
	// Waiting counts the tasks that are due and wait for all this, up to MostWaiting.
	Waiting int64 `json:"waiting"`
	// Busy reports whether a relay has used the ceiling to the full within ten seconds, so
	// that Waiting is no sign of trouble.
	Busy bool `json:"busy"`
}

// Paused reports whether it is paused.
func (d DestinationState) Paused() bool { return !d.PausedAt.IsZero() }

// Destination is the queue, or the exchange without a routing key.
func (d DestinationState) Destination() topology.Destination {
	return topology.Destination{Queue: d.Queue, Exchange: d.Exchange}
}

// Name is that of the queue or the exchange.
func (d DestinationState) Name() string { return cmp.Or(d.Queue, d.Exchange) }

// String returns in English what holds the tasks back, in one line; empty for nothing.
func (d DestinationState) String() string {
	var parts []string
	if d.Paused() {
		text := "paused since " + d.PausedAt.Format(time.RFC3339)
		if d.PausedBy != "" {
			text += " by " + d.PausedBy
		}
		parts = append(parts, text)
	}
	if d.PerSecond > 0 {
		parts = append(parts, fmt.Sprintf("at most %v a second, %d at once", d.PerSecond, d.Burst))
	}
	if !d.SpreadUntil.IsZero() {
		parts = append(parts, "what came due in a pause is sent until "+d.SpreadUntil.Format(time.RFC3339))
	}
	return strings.Join(parts, "; ")
}

// MostWaiting is how many tasks of a destination DestinationState counts.
const MostWaiting = 100_000

// busyFor is how long after its last use a ceiling counts as busy.
const busyFor = 10 * time.Second

// Destinations returns those that are paused, have a ceiling, or are sent over a time what
// came due in a pause, by queue and exchange.
func (s *Store) Destinations(ctx context.Context, ex Executor) ([]DestinationState, error) {
	return reading(ctx, s, ex, Filter{}, "reading destinations", func(c rows.Conn, _ rows.Filter) ([]DestinationState, error) {
		return s.states(ctx, c)
	})
}

func (s *Store) states(ctx context.Context, c rows.Conn) (list []DestinationState, err error) {
	gates, err := c.Gates(ctx)
	if err != nil {
		return nil, err
	}
	now := s.nowOn(ctx, c)
	for _, g := range gates {
		x := stateOf(g, now)
		if !x.Paused() && x.PerSecond == 0 && x.SpreadUntil.IsZero() {
			continue
		}
		if x.Waiting, err = c.CountUnsent(ctx, g.Lane, now.UnixMilli(), MostWaiting); err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	return list, nil
}

func stateOf(g *rows.Gate, now time.Time) DestinationState {
	x := DestinationState{
		Queue: g.Queue, Exchange: g.Exchange, PausedAt: utc(g.PausedAt), PausedBy: g.PausedBy, PerSecond: g.PerSecond,
	}
	if g.PerSecond > 0 {
		x.Burst = g.Burst
		x.Busy = now.Add(-busyFor).UnixNano() < g.Free
	}
	if g.Spreads(now) {
		x.SpreadUntil = utc(g.SpreadUntil)
		x.Busy = x.Busy || now.Add(-busyFor).UnixNano() < g.SpreadFree
	}
	return x
}

// utc is an instant in UTC; zero stays zero.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
