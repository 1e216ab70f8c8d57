package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// History is how tasks ended: by minute of the last hour, by ten minutes of the last day, by
// hour of the last week. Spans without a task are left out, and those that have not been
// read yet.
type History struct{ Hour, Day, Week []schedule.Ends }

// resolution is a width of spans, and for how long they are kept.
type resolution struct{ width, over time.Duration }

// resolutions, the finest first. Each width is a multiple of the one before.
var resolutions = [...]resolution{
	{time.Minute, time.Hour},
	{10 * time.Minute, 24 * time.Hour},
	{time.Hour, 7 * 24 * time.Hour},
}

const (
	// settle is how long after its end a span is read for good: a handler's transaction
	// commits after the instant that it records as the end.
	settle = 2 * time.Minute
	// relax is how many times longer than a reading of tasks the pause after it is.
	relax = 20
)

// history has what the table has, and what is too young for it. The rows are written once,
// from the tasks, so that it does not matter which of several consoles writes one, or
// whether two do.
type history struct {
	mu    sync.Mutex
	spans [len(resolutions)]map[int64]schedule.Ends // by when they begin

	recent   []schedule.Ends // minutes
	recentAt time.Time
	took     time.Duration
}

func (h *history) set(level int, spans map[int64]schedule.Ends) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spans[level] = spans
}

func (h *history) keep(level int, e schedule.Ends) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spans[level][e.From.UnixMilli()] = e
}

// missing returns the spans that could be there and are not, the newest first.
func (h *history) missing(level int, now time.Time) []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := resolutions[level]
	var list []time.Time
	for at := now.Add(-settle).Truncate(r.width).Add(-r.width); at.After(now.Add(-r.over - r.width)); at = at.Add(-r.width) {
		if _, known := h.spans[level][at.UnixMilli()]; !known {
			list = append(list, at)
		}
	}
	return list
}

// sum adds up a span from finer ones, if they are all there.
func (h *history) sum(level int, from time.Time) (e schedule.Ends, ok bool) {
	if level == 0 {
		return e, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e = schedule.Ends{From: from, To: from.Add(resolutions[level].width)}
	for at := from; at.Before(e.To); at = at.Add(resolutions[level-1].width) {
		part, known := h.spans[level-1][at.UnixMilli()]
		if !known {
			return e, false
		}
		e = e.Plus(part)
	}
	return e, true
}

// consecutive returns how many of the spans follow each other back in time, without one that finer
// spans add up to.
func (h *history) consecutive(level int, spans []time.Time) int {
	for i := 1; i < len(spans); i++ {
		if _, ok := h.sum(level, spans[i]); ok || !spans[i].Equal(spans[i-1].Add(-resolutions[level].width)) {
			return i
		}
	}
	return len(spans)
}

// view returns what is known at an instant, the minutes that are too young for the table
// read anew.
func (h *history) view(ctx context.Context, s *schedule.Store, now time.Time) (v History, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.recent == nil || now.Sub(h.recentAt) >= relax*h.took {
		began := time.Now()
		first := now.Truncate(time.Minute).Add(-settle - time.Minute)
		if h.recent, err = s.Ended(ctx, schedule.NoTx, first, time.Minute, int((settle+time.Minute)/time.Minute)+1); err != nil {
			return v, err
		}
		h.recentAt, h.took = now, time.Since(began)
	}
	v.Hour = h.joined(0, h.recent, now)
	v.Day = h.joined(1, v.Hour, now)
	v.Week = h.joined(2, v.Day, now)
	return v, nil
}

// joined returns the spans of a resolution in their order, and where they are not kept yet
// those of the finer ones.
func (h *history) joined(level int, finer []schedule.Ends, now time.Time) []schedule.Ends {
	r := resolutions[level]
	young := map[int64]schedule.Ends{}
	for _, e := range finer {
		at := e.From.Truncate(r.width)
		if _, kept := h.spans[level][at.UnixMilli()]; !kept && now.Sub(at) <= r.width+settle+time.Minute {
			sum := young[at.UnixMilli()]
			sum.From, sum.To = at, at.Add(r.width)
			young[at.UnixMilli()] = sum.Plus(e)
		}
	}
	last := now.Truncate(r.width)
	list := []schedule.Ends{}
	for at := last.Add(r.width - r.over); !at.After(last); at = at.Add(r.width) {
		e, kept := h.spans[level][at.UnixMilli()]
		if !kept {
			e = young[at.UnixMilli()]
		}
		if e.Done+e.Failed > 0 {
			list = append(list, e)
		}
	}
	return list
}

// keepHistory writes the history, minute by minute, until the Core is closed.
func (c *Core) keepHistory(t *table) {
	for c.ctx.Err() == nil {
		err := c.answers(c.ctx)
		if err == nil {
			err = c.writeHistory(c.ctx, t)
		}
		if err != nil && c.ctx.Err() == nil {
			err = fmt.Errorf("the history of ended tasks cannot be kept: %w", err)
			c.log.Warn("history", zap.Error(err))
		}
		c.unkept.Store(&err)
		pause(c.ctx, time.Minute)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// writeHistory reads the table, adds what is missing there, and deletes what is old.
func (c *Core) writeHistory(ctx context.Context, t *table) error {
	now, err := t.clock(ctx)
	if err != nil {
		return err
	}
	kept, err := t.history(ctx)
	if err != nil {
		return err
	}
	for level, r := range resolutions {
		c.history.set(level, kept[r.width.Milliseconds()])
	}
	for level, r := range resolutions {
		if err := c.complete(ctx, t, level, c.history.missing(level, now)); err != nil {
			return err
		}
		if err := t.forgetHistory(ctx, r.width, now.Add(-r.over-time.Hour)); err != nil {
			return err
		}
	}
	return nil
}

// brisk is a reading after which the next one may be of twice as many spans.
const brisk = 50 * time.Millisecond

// complete writes spans that are missing: what finer ones add up to, or else what it reads
// from the tasks, several at once if that is fast. It rests after each reading.
func (c *Core) complete(ctx context.Context, t *table, level int, missing []time.Time) error {
	for most := 1; len(missing) > 0; {
		if e, ok := c.history.sum(level, missing[0]); ok {
			if err := t.addHistory(ctx, e); err != nil {
				return err
			}
			c.history.keep(level, e)
			missing = missing[1:]
			continue
		}
		n := c.history.consecutive(level, missing[:min(most, len(missing))])
		began := time.Now()
		list, err := readStore(ctx, c, func(ctx context.Context, s *schedule.Store) ([]schedule.Ends, error) {
			return s.Ended(ctx, schedule.NoTx, missing[n-1], resolutions[level].width, n)
		})
		took := time.Since(began)
		if err != nil && !errors.Is(err, errSlow) { // there are too many; finer spans add up to the next one
			return err
		}
		for _, e := range list {
			if err := t.addHistory(ctx, e); err != nil {
				return err
			}
			c.history.keep(level, e)
		}
		missing = missing[n:]
		most = 1
		if took < brisk {
			most = 2 * n
		}
		pause(ctx, relax*took)
	}
	return ctx.Err()
}

// clock reads the database's clock, which is the same for all consoles.
func (t *table) clock(ctx context.Context) (now time.Time, err error) {
	err = t.rows(ctx, "SELECT @now", nil, func(rows sqldb.Rows) error {
		var ms int64
		err := rows.Scan(&ms)
		now = time.UnixMilli(ms)
		return err
	})
	return now, err
}

// history reads the spans by their widths in milliseconds, and by when they begin.
func (t *table) history(ctx context.Context) (map[int64]map[int64]schedule.Ends, error) {
	kept := map[int64]map[int64]schedule.Ends{}
	for _, r := range resolutions {
		kept[r.width.Milliseconds()] = map[int64]schedule.Ends{}
	}
	err := t.rows(ctx, "SELECT width_ms, begins_at, done, failed, retries, late FROM rabbitdelay_history", nil, func(rows sqldb.Rows) error {
		var e schedule.Ends
		var width, at int64
		var late string
		if err := rows.Scan(&width, &at, &e.Done, &e.Failed, &e.Retries, &late); err != nil {
			return err
		}
		e.From, e.To = time.UnixMilli(at), time.UnixMilli(at+width)
		// What another program wrote counts as absent.
		if err := json.Unmarshal([]byte(late), &e.Late); err == nil && kept[width] != nil {
			kept[width][at] = e
		}
		return nil
	})
	return kept, err
}

// addHistory writes a span unless somebody else has.
func (t *table) addHistory(ctx context.Context, e schedule.Ends) error {
	d, err := t.dialect.Resolve(ctx, t.db)
	if err != nil {
		return err
	}
	last := len(e.Late)
	for last > 0 && e.Late[last-1] == 0 {
		last--
	}
	late, err := json.Marshal(append([]int64{}, e.Late[:last]...))
	if err != nil {
		return err
	}
	_, err = t.exec(ctx, t.db, d.InsertMissing("rabbitdelay_history (width_ms, begins_at, done, failed, retries, late) VALUES (?, ?, ?, ?, ?, ?)"),
		e.To.Sub(e.From).Milliseconds(), e.From.UnixMilli(), e.Done, e.Failed, e.Retries, string(late))
	return err
}

// forgetHistory deletes the spans of a width that begin before an instant.
func (t *table) forgetHistory(ctx context.Context, width time.Duration, before time.Time) error {
	_, err := t.exec(ctx, t.db, "DELETE FROM rabbitdelay_history WHERE width_ms = ? AND begins_at < ?", width.Milliseconds(), before.UnixMilli())
	return err
}
