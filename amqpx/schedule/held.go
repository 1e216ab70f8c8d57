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
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// longestBy is the maximum length in bytes of the text that says who has paused a destination.
const longestBy = 200

// Pause stops sending tasks to a destination as soon as ex commits. The destination is a queue, or an exchange with all
// its routing keys. Use it while the service behind the destination must not receive tasks, for example during an
// incident. The destination's tasks stay in the table until Resume, whichever relays run now or start later, and
// recurring tasks still create new ones. The parameter by is shown to operators as the person or program that paused
// the destination. Pausing twice is a no-op: the first PausedAt and PausedBy stay.
//
// Pause returns ErrConfig for an invalid destination or by, and for a destination that is not listed, if the sender or
// Config.Destination restricts destinations to a list. Without such a list, a misspelt name is accepted, but pausing it
// stops no tasks.
//
// Batches that a relay is publishing when ex commits are still published. The running relays recall tasks whose
// messages are already with the broker, either delayed or in the destination's queue. Tasks that are due soon are
// recalled within about a second, and later ones before they are due. The messages of recalled tasks then have no
// effect, and the tasks are sent again after the pause. A task that was waiting for a retry keeps its number of
// attempts. A handler that has already started finishes its task. A task that was sent more than three times (see
// Config.MaxSends) may still be handled.
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
	polling.Wrote(s.db.DB)
	return nil
}

// Resume ends a pause when ex commits. Tasks that came due during the pause are sent immediately or, with a spread, at
// an even rate over that duration, so that consumers are not flooded. Tasks that become due later do not wait for these
// tasks. A spread of less than one second is treated as 0. A RateLimit of the destination still applies, and if sending
// the tasks at that rate takes longer than the spread, they are spread over the longer time. Resuming a destination
// that is not paused is a no-op. Resume returns ErrConfig for an invalid destination, and for a spread that is negative
// or longer than 30 days. It also returns ErrConfig for a destination that is not listed (see Pause), unless that
// destination is paused or limited. Without a list, a misspelt name is accepted, and the destination that was meant
// stays paused.
func (s *Store) Resume(ctx context.Context, ex Executor, d topology.Destination, spread time.Duration) error {
	const longest = 30 * 24 * time.Hour
	if spread < 0 || spread > longest {
		return fmt.Errorf("%w: %w", ErrConfig, &topology.FieldError{Field: "spread", Value: spread, Want: "0 to " + topology.FormatDuration(longest)})
	}
	if reason := units.Duration(spread); reason != "" {
		return fmt.Errorf("%w: the spread is %s", ErrConfig, reason)
	}
	err := s.changeGate(ctx, ex, "resuming", d, func(c rows.Conn, g *rows.Gate) error {
		if !g.Paused() {
			return s.releasable(d, g)
		}
		g.PausedAt, g.PausedBy = time.Time{}, ""
		g.SpreadDue, g.SpreadUntil, g.SpreadRate, g.SpreadFree = time.Time{}, time.Time{}, 0, 0
		if spread < time.Second {
			return nil
		}
		now := s.nowOn(ctx, c)
		n, err := c.CountUnsent(ctx, g.Lane, -rows.MaxDue, now.UnixMilli(), mostSpread)
		if n > 0 {
			took := spread
			if g.PerSecond > 0 {
				took = max(took, time.Duration(min(float64(n)/g.PerSecond, longest.Seconds())*float64(time.Second)))
			}
			g.SpreadDue, g.SpreadUntil, g.SpreadRate, g.SpreadFree = now, now.Add(took), float64(n)/took.Seconds(), now.UnixNano()
		}
		return err
	})
	if err != nil {
		return err
	}
	polling.Wake(s.db.DB)
	return nil
}

// mostSpread bounds how many tasks Resume counts to compute the rate of a spread. Tasks beyond that number are sent
// after the spread has ended.
const mostSpread = 10_000_000

// SetRateLimit sets, changes or removes the rate limit of a destination when ex commits, for all relays of the
// database. A PerSecond of 0 removes it. Run also sets the rate limits of Config.RateLimits when it starts, but it
// keeps a rate limit that was changed with SetRateLimit, unless Config.RateLimits has changed for the destination since
// then.
//
// SetRateLimit returns ErrConfig for an invalid rate limit or destination. It also returns ErrConfig for a destination
// that is not listed (see Pause), except when it removes a rate limit of a destination that is limited or paused.
func (s *Store) SetRateLimit(ctx context.Context, ex Executor, x RateLimit) error {
	_, err := s.setRateLimit(ctx, ex, x, false)
	return err
}

// setRateLimit implements SetRateLimit. If configured is true, the rate limit comes from Config.RateLimits. If an
// operator has changed the rate limit since this configured value was first written, their change stays, and
// setRateLimit returns it as kept.
func (s *Store) setRateLimit(ctx context.Context, ex Executor, x RateLimit, configured bool) (kept RateLimit, err error) {
	if x, err = x.completed(); err != nil {
		return kept, err
	}
	d := topology.Destination{Queue: x.Queue, Exchange: x.Exchange}
	if err := s.holdable(d); err != nil && x.PerSecond > 0 {
		return kept, err
	}
	err = s.changeGate(ctx, ex, "the rate limit of", d, func(c rows.Conn, g *rows.Gate) error {
		kept = RateLimit{}
		if x.PerSecond == 0 && !configured {
			if err := s.releasable(d, g); err != nil {
				return err
			}
		}
		same := g.PerSecond == x.PerSecond && (g.Burst == x.Burst || x.PerSecond == 0)
		if configured {
			if g.FileWrote && g.FilePerSecond == x.PerSecond && g.FileBurst == x.Burst {
				if !same {
					kept = RateLimit{Queue: x.Queue, Exchange: x.Exchange, PerSecond: g.PerSecond, Burst: g.Burst}
				}
				return nil
			}
			g.FileWrote, g.FilePerSecond, g.FileBurst = true, x.PerSecond, x.Burst
		}
		if !same {
			// Reservations that were made at the old rate must not delay tasks at the new one.
			g.PerSecond, g.Burst, g.Free = x.PerSecond, x.Burst, min(g.Free, s.nowOn(ctx, c).Add(time.Second).UnixNano())
		}
		return nil
	})
	if err != nil {
		return kept, err
	}
	polling.Wake(s.db.DB)
	return kept, nil
}

// holdable returns an error if tasks may not be sent to the destination. A pause or a rate limit applies to all routing
// keys of an exchange, so the exchange is accepted if at least one of its routing keys is listed.
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
		return nil // the caller's own check may have failed only because there is no routing key
	}
	return fmt.Errorf("%w: %w%s", ErrConfig, err, naming.DidYouMean(cmp.Or(d.Queue, d.Exchange), names))
}

// releasable returns an error if a destination is not held back and no tasks may be sent to it. Its name is then
// probably misspelt. A destination that was held back and is no longer listed can still be released.
func (s *Store) releasable(d topology.Destination, g *rows.Gate) error {
	if g.Paused() || g.PerSecond > 0 || !g.SpreadUntil.IsZero() {
		return nil
	}
	return s.holdable(d)
}

// listed returns an error if the configuration or the sender rejects a destination regardless of the message.
func (s *Store) listed(dest topology.Destination) error {
	return relay.Listed(s.sender, s.cfg.Destination, dest)
}

// changeGate locks and changes the pause or the rate limit of a destination. Its errors begin with the parameter doing,
// such as "pausing".
func (s *Store) changeGate(ctx context.Context, ex Executor, doing string, d topology.Destination, change func(rows.Conn, *rows.Gate) error) error {
	l, err := laneOf(d)
	if err != nil {
		return err
	}
	err = s.db.Within(ctx, s.rawConn(ex), func(c rows.Conn) error {
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

// DestinationState is the state of a destination that is paused or whose rate is limited.
type DestinationState struct {
	// Queue or Exchange is the destination. An exchange includes all its routing keys.
	Queue    string `json:"queue,omitempty"`
	Exchange string `json:"exchange,omitempty"`
	// PausedAt is when the destination was paused, by the database's clock, and PausedBy is the
	// text given to Pause. Both are zero if it is not paused.
	PausedAt time.Time `json:"paused_at,omitzero"`
	PausedBy string    `json:"paused_by,omitempty"`
	// PerSecond and Burst are the destination's RateLimit, 0 if it has none.
	PerSecond float64 `json:"per_second,omitempty"`
	Burst     int     `json:"burst,omitempty"`
	// SpreadUntil is when all the tasks that became due during a pause will have been sent (see Resume). It is zero if
	// no tasks are being spread.
	SpreadUntil time.Time `json:"spread_until,omitzero"`
	// Waiting is the number of tasks that are due and not yet sent, up to 100,000.
	Waiting int64 `json:"waiting"`
	// Busy reports whether relays have used up the rate limit, or the rate of a spread, within the last ten seconds. In
	// that case it is normal that tasks are waiting.
	Busy bool `json:"busy"`
}

// Paused reports whether the destination is paused.
func (d DestinationState) Paused() bool { return !d.PausedAt.IsZero() }

// Destination returns the queue, or the exchange without a routing key.
func (d DestinationState) Destination() topology.Destination {
	return topology.Destination{Queue: d.Queue, Exchange: d.Exchange}
}

// String describes in one line of English why tasks are not sent, or are sent slowly. It returns "" if tasks are not
// held back.
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
		parts = append(parts, fmt.Sprintf("at most %v a second, in bursts of up to %d", d.PerSecond, d.Burst))
	}
	if !d.SpreadUntil.IsZero() {
		parts = append(parts, "tasks that became due during the pause are sent until "+d.SpreadUntil.Format(time.RFC3339))
	}
	return strings.Join(parts, "; ")
}

// busyFor is how long a rate limit counts as busy after the last task that it allowed.
const busyFor = 10 * time.Second

// Destinations returns the destinations that are paused, that have a rate limit, or whose tasks are being spread after
// a pause, sorted by queue and exchange.
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
		if x.Waiting, err = c.CountUnsent(ctx, g.Lane, -rows.MaxDue, now.UnixMilli(), rows.MaxWaiting); err != nil {
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

// utc converts a time to UTC. The zero time stays as it is.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
