package snapshot

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// lookEvery is how often delay queues are counted while they are watched.
const lookEvery = 200 * time.Millisecond

// standstill looks at the delay queues, and again while one that matters may stand still: a
// count that falls ends that for its queue.
func (c *collector) standstill(ctx context.Context) error {
	if c.src.Standstill == nil {
		return nil
	}
	w := watch{collector: c, delays: doctor.Delays(c.cfg, c.snap.Live)}
	first := doctor.Look{All: true}
	if c.managed && c.uncounted == "" {
		first.Figures, first.Read = w.figures(c.snap.Live.Queues), c.inspected
	}
	busy, err := w.look(ctx, slices.Sorted(maps.Keys(w.delays)), first)
	if err != nil {
		return err
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var decidable time.Time // when all that are open were watched for long enough
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
				why = "that takes the management API"
			}
			some := strings.Join(open[:min(len(open), 3)], ", ")
			c.unseenf(doctor.AreaStandstill, "delay queues whose count has not fallen for longer than their TTL (%d, such as %s) either keep messages, or as many come as leave; there is no telling: %s", len(open), some, why)
			return nil
		case decidable.IsZero():
			decidable = time.Now()
		case time.Since(decidable) > doctor.FiguresLag+lookEvery:
			read := time.Now()
			queues, err := c.src.Management.Queues(ctx)
			if err != nil {
				c.unseenf(doctor.AreaStandstill, "%s", oneLine(err))
				return nil
			}
			if _, err := w.look(ctx, busy, doctor.Look{Figures: w.figures(queues), Read: read}); err != nil {
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
		if _, err := w.look(ctx, busy, doctor.Look{}); err != nil {
			return err
		}
	}
}

type watch struct {
	*collector

	delays map[string]doctor.Delay
}

func (w watch) figures(queues map[string]observed.Queue) map[string]doctor.Figures {
	out := make(map[string]doctor.Figures, len(w.delays))
	for name := range w.delays {
		q := queues[name]
		out[name] = doctor.Figures{Leaving: q.Leaving, Published: q.Published}
	}
	return out
}

// look counts queues for a look, takes it in, and returns which of them have messages.
func (w watch) look(ctx context.Context, names []string, l doctor.Look) (busy []string, err error) {
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
