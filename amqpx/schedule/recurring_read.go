package schedule

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// definition are the columns that a caller writes, in the order of its values.
var definition = []string{
	"cron", "time_zone", "every_ms", "starts_at", "ends_at", "jitter_ms", "misfire", "misfire_limit", "overlap",
	"queue", "exchange", "routing_key", "body", "content_type", "type", "correlation_id", "priority", "expires_after", "headers", "tags", "paused", "origin",
}

func (r *Recurring) values() ([]any, error) {
	t := &r.Task
	headers, err := encodeHeaders(t.Headers)
	if err != nil {
		return nil, r.bad("Headers", "%v", err)
	}
	var tags any
	if len(t.Tags) > 0 {
		b, err := json.Marshal(t.Tags)
		if err != nil {
			return nil, err
		}
		tags = string(b)
	}
	body := t.Body
	if body == nil {
		body = []byte{}
	}
	paused := 0
	if r.Paused {
		paused = 1
	}
	return []any{
		r.Cron, r.TimeZone, r.Every.Milliseconds(), orNull(r.Start), orNull(r.End), r.Jitter.Milliseconds(), string(r.Misfire), r.MisfireLimit, string(r.Overlap),
		t.Queue, t.Exchange, t.RoutingKey, body, t.ContentType, t.Type, t.CorrelationID, t.Priority, expiresAfter(t.ExpiresAfter), headers, tags, paused, r.Origin,
	}, nil
}

func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return millis(t)
}

func orZero(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return time.UnixMilli(ms.Int64)
}

// row is a row of rabbitdelay_schedules.
type row struct {
	Recurring

	planned  int64 // the version that the relays go by
	planAt   time.Time
	bodySize int64
	bad      error // what another program wrote cannot be read
	limit    error // this relay cannot read it, another one may
}

// scheduleColumns are those of a row, in the order of scanRow.
func scheduleColumns(d Dialect, withBody bool) string {
	size, body := "octet_length(body)", "NULL"
	if d == SQLite {
		size = "length(CAST(body AS BLOB))"
	}
	if withBody {
		body = "body"
	}
	return "name, cron, time_zone, every_ms, starts_at, ends_at, jitter_ms, misfire, misfire_limit, overlap, " +
		"queue, exchange, routing_key, " + body + ", content_type, type, correlation_id, priority, expires_after, headers, tags, paused, origin, version, " +
		"created_at, updated_at, next_at, last_at, skipped_at, last_error, planned_version, plan_at, " + size
}

func scanRow(scan func(...any) error) (*row, error) {
	r := &row{}
	t := &r.Task
	var every, jitter, created, updated, planAt int64
	var paused int
	var start, end, next, last, skipped, expires sql.NullInt64
	var headers, tags, lastError sql.NullString
	err := scan(&r.Name, &r.Cron, &r.TimeZone, &every, &start, &end, &jitter, &r.Misfire, &r.MisfireLimit, &r.Overlap,
		&t.Queue, &t.Exchange, &t.RoutingKey, &t.Body, &t.ContentType, &t.Type, &t.CorrelationID, &t.Priority, &expires, &headers, &tags, &paused, &r.Origin, &r.Version,
		&created, &updated, &next, &last, &skipped, &lastError, &r.planned, &planAt, &r.bodySize)
	if err != nil {
		return nil, err
	}
	r.Paused, r.LastError = paused != 0, lastError.String
	r.Start, r.End = orZero(start), orZero(end)
	r.NextAt, r.LastAt, r.SkippedAt = orZero(next), orZero(last), orZero(skipped)
	r.CreatedAt, r.UpdatedAt, r.planAt = time.UnixMilli(created), time.UnixMilli(updated), time.UnixMilli(planAt)
	if every > maxEvery.Milliseconds() || jitter > maxJitter.Milliseconds() {
		r.bad = r.Recurring.bad("Every", "every_ms %d and jitter_ms %d, expected at most %d and %d", every, jitter, maxEvery.Milliseconds(), maxJitter.Milliseconds())
		return r, nil
	}
	t.ExpiresAfter = expiresAfterOf(expires)
	r.Every, r.Jitter = time.Duration(every)*time.Millisecond, time.Duration(jitter)*time.Millisecond
	if headers.Valid {
		err := json.Unmarshal([]byte(headers.String), &t.Headers)
		if err == nil && t.Headers == nil {
			err = errors.New("null")
		}
		if err != nil {
			r.bad = r.Recurring.bad("Headers", "%v", &headersError{err})
		}
	}
	if tags.String != "" {
		if err := json.Unmarshal([]byte(tags.String), &t.Tags); err != nil {
			r.bad = r.Recurring.bad("Tags", "column tags: expected a JSON array of strings: %v", err)
		}
	}
	return r, nil
}

// readRows reads what a query of scheduleColumns finds.
func readRows(ctx context.Context, c sqldb.Conn, query string, args ...any) ([]*row, error) {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var list []*row
	for rows.Next() {
		r, err := scanRow(rows.Scan)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, rows.Err()
}

// Schedules are the recurring tasks of a store. A method's Executor is as that of
// the store's: what it changes, its tasks included, takes effect when that
// commits.
type Schedules struct{ s *Store }

// Schedules are the store's recurring tasks.
func (s *Store) Schedules() Schedules { return Schedules{s} }

// Get reads one. Errors: ErrNoSchedule.
func (x Schedules) Get(ctx context.Context, ex Executor, name string) (Recurring, error) {
	c := x.s.on(ex)
	d, err := x.s.dialect.Resolve(ctx, c)
	if err != nil {
		return Recurring{}, err
	}
	r, err := x.get(ctx, c, d, name)
	if err != nil {
		return Recurring{}, fmt.Errorf("%s: %w", of(name), err)
	}
	return r.Recurring, nil
}

func (x Schedules) get(ctx context.Context, c sqldb.Conn, d Dialect, name string) (*row, error) {
	r, err := scanRow(c.QueryRowContext(ctx, d.Bind("SELECT "+scheduleColumns(d, true)+" FROM rabbitdelay_schedules WHERE name = ?"), name).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNoSchedule
	}
	return r, sqldb.Explain(err)
}

// schedulePage is how many rows List reads at a time.
const schedulePage = 100

// List iterates over all of them in the order of their names, page by page, without
// the tasks' bodies. The iteration ends after an error.
func (x Schedules) List(ctx context.Context, ex Executor) iter.Seq2[Recurring, error] {
	return func(yield func(Recurring, error) bool) {
		c := x.s.on(ex)
		after := ""
		for {
			page, err := x.page(ctx, c, after)
			if err != nil {
				yield(Recurring{}, fmt.Errorf("listing recurring tasks: %w", sqldb.Explain(err)))
				return
			}
			for _, r := range page {
				if !yield(r.Recurring, nil) {
					return
				}
				after = r.Name
			}
			if len(page) < schedulePage {
				return
			}
		}
	}
}

func (x Schedules) page(ctx context.Context, c sqldb.Conn, after string) ([]*row, error) {
	d, err := x.s.dialect.Resolve(ctx, c)
	if err != nil {
		return nil, err
	}
	query := fmt.Sprintf("SELECT %s FROM rabbitdelay_schedules WHERE name > ? ORDER BY name LIMIT %d", scheduleColumns(d, false), schedulePage)
	return readRows(ctx, c, d.Bind(query), after)
}
