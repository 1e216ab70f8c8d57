package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// History counts the tasks that ended, in three resolutions: by minute for the last hour, by ten minutes for the last
// day, and by hour for the last week. A time span is missing if no task ended in it, or if it has not been read yet.
type History struct{ Hour, Day, Week []taskview.CompletionStats }

// resolution is the width of time spans, and how long spans of this width are kept.
type resolution struct{ width, over time.Duration }

// resolutions lists the finest resolution first. Each width is a multiple of the one before it.
var resolutions = [...]resolution{
	{time.Minute, time.Hour},
	{10 * time.Minute, 24 * time.Hour},
	{time.Hour, 7 * 24 * time.Hour},
}

const (
	// settle is the time between the end of a span and its final reading. It must not be zero, because a handler's
	// transaction commits later than the time that it records as the task's end.
	settle = 2 * time.Minute
	// relax is the pause after reading tasks, as a multiple of the time that the reading took.
	relax = 20
)

// history caches the spans of the history table, and the minutes that are too recent for the table. A row of the
// table is written once and derives from the tasks alone. It therefore does not matter which of several consoles
// writes a row, or whether two consoles write the same one.
type history struct {
	mu    sync.Mutex
	spans [len(resolutions)]map[int64]taskview.CompletionStats // keyed by the beginning of the span in Unix milliseconds

	recent   []taskview.CompletionStats // minutes
	recentAt time.Time
	took     time.Duration
}

func (h *history) set(level int, spans map[int64]taskview.CompletionStats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spans[level] = spans
}

func (h *history) keep(level int, e taskview.CompletionStats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spans[level][e.From.UnixMilli()] = e
}

// missing returns the spans that are old enough to be in the table but are not, newest first.
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

// sum computes a span from spans of the next finer resolution, if all of them are known.
func (h *history) sum(level int, from time.Time) (e taskview.CompletionStats, ok bool) {
	if level == 0 {
		return e, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e = taskview.CompletionStats{From: from, To: from.Add(resolutions[level].width)}
	for at := from; at.Before(e.To); at = at.Add(resolutions[level-1].width) {
		part, known := h.spans[level-1][at.UnixMilli()]
		if !known {
			return e, false
		}
		e = e.Plus(part)
	}
	return e, true
}

// consecutive returns how many of the given spans can be read with one query. Starting with the first one, each span
// must end where the previous one begins, and none may be computable from finer spans.
func (h *history) consecutive(level int, spans []time.Time) int {
	for i := 1; i < len(spans); i++ {
		if _, ok := h.sum(level, spans[i]); ok || !spans[i].Equal(spans[i-1].Add(-resolutions[level].width)) {
			return i
		}
	}
	return len(spans)
}

// view returns the history up to now. It reads the minutes that are too recent for the table from the tasks, but to
// limit the load, not until relax times the duration of the last such reading has passed.
func (h *history) view(ctx context.Context, s *taskview.Store, now time.Time) (v History, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.recent == nil || now.Sub(h.recentAt) >= relax*h.took {
		began := time.Now()
		first := now.Truncate(time.Minute).Add(-settle - time.Minute)
		if h.recent, err = s.CompletionStats(ctx, first, time.Minute, int((settle+time.Minute)/time.Minute)+1); err != nil {
			return v, err
		}
		h.recentAt, h.took = now, time.Since(began)
	}
	v.Hour = h.joined(0, h.recent, now)
	v.Day = h.joined(1, v.Hour, now)
	v.Week = h.joined(2, v.Day, now)
	return v, nil
}

// joined returns the spans of a resolution in which tasks ended, in chronological order. It computes recent spans that
// are not kept yet from the finer spans.
func (h *history) joined(level int, finer []taskview.CompletionStats, now time.Time) []taskview.CompletionStats {
	r := resolutions[level]
	young := map[int64]taskview.CompletionStats{}
	for _, e := range finer {
		at := e.From.Truncate(r.width)
		if _, kept := h.spans[level][at.UnixMilli()]; !kept && now.Sub(at) <= r.width+settle+time.Minute {
			sum := young[at.UnixMilli()]
			sum.From, sum.To = at, at.Add(r.width)
			young[at.UnixMilli()] = sum.Plus(e)
		}
	}
	last := now.Truncate(r.width)
	list := []taskview.CompletionStats{}
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

// keepHistory updates the history table once a minute until the Core is closed.
func (c *Core) keepHistory(t *table) {
	for c.ctx.Err() == nil {
		err := c.answers(c.ctx)
		if err == nil {
			err = c.writeHistory(c.ctx, t)
		}
		if err != nil && c.ctx.Err() == nil {
			c.log.Warn("could not update the history of ended tasks; trying again", zap.Error(err))
			err = fmt.Errorf("the history of ended tasks cannot be updated: %w", err)
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

// writeHistory reads the table, adds missing spans, and deletes expired ones.
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

// brisk is the duration below which a query counts as fast. After a fast query, the next one reads twice as many spans.
const brisk = 50 * time.Millisecond

// complete writes the missing spans. It computes spans from finer spans where it can. It reads the others from the
// tasks, several spans per query if the last query was fast, and pauses after each query.
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
		list, err := readStore(ctx, c, func(ctx context.Context, s *taskview.Store) ([]taskview.CompletionStats, error) {
			return s.CompletionStats(ctx, missing[n-1], resolutions[level].width, n)
		})
		took := time.Since(began)
		if err != nil && !errors.Is(err, errSlow) { // too many tasks, so skip these spans; spans of a later time are computed from finer ones
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

// clock reads the database's clock, which all consoles share.
func (t *table) clock(ctx context.Context) (now time.Time, err error) {
	err = t.rows(ctx, "SELECT @now", nil, func(rows sqldb.Rows) error {
		var ms int64
		err := rows.Scan(&ms)
		now = time.UnixMilli(ms)
		return err
	})
	return now, err
}

// history reads the table's spans, keyed by their width and their beginning in milliseconds.
func (t *table) history(ctx context.Context) (map[int64]map[int64]taskview.CompletionStats, error) {
	kept := map[int64]map[int64]taskview.CompletionStats{}
	for _, r := range resolutions {
		kept[r.width.Milliseconds()] = map[int64]taskview.CompletionStats{}
	}
	err := t.rows(ctx, "SELECT width_ms, begins_at, done, failed, retries, late FROM rabbitdelay_history", nil, func(rows sqldb.Rows) error {
		var e taskview.CompletionStats
		var width, at int64
		var late string
		if err := rows.Scan(&width, &at, &e.Done, &e.Failed, &e.Retries, &late); err != nil {
			return err
		}
		e.From, e.To = time.UnixMilli(at), time.UnixMilli(at+width)
		// A row that another program wrote in a different format counts as missing.
		if err := json.Unmarshal([]byte(late), &e.Late); err == nil && kept[width] != nil {
			kept[width][at] = e
		}
		return nil
	})
	return kept, err
}

// addHistory writes a span unless the table has it already.
func (t *table) addHistory(ctx context.Context, e taskview.CompletionStats) error {
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

// forgetHistory deletes the spans of the given width that begin before the given time.
func (t *table) forgetHistory(ctx context.Context, width time.Duration, before time.Time) error {
	_, err := t.exec(ctx, t.db, "DELETE FROM rabbitdelay_history WHERE width_ms = ? AND begins_at < ?", width.Milliseconds(), before.UnixMilli())
	return err
}
