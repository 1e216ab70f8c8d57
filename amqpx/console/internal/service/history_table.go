package service

import (
	"context"
	"encoding/json"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

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
