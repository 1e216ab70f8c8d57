package rows

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Locked contains the columns of a locked task that may have changed since it was read.
type Locked struct {
	Version int64
	Status  string
}

// Seen is the state of a task at the time when a page of a bulk change was read.
type Seen struct {
	Place

	Version int64
}

// BulkPlace is the position of a bulk change.
type BulkPlace struct {
	Place // the position of the last task that was processed

	// Held contains the ids of earlier tasks that were locked, for example by a handler, when their batch was changed.
	Held []string
}

// String returns the place as text for ParseBulkPlace: the Place, or a JSON array of the Place and the ids of Held.
func (p BulkPlace) String() string {
	if len(p.Held) == 0 {
		return p.Place.String()
	}
	text, _ := json.Marshal(append([]string{p.Place.String()}, p.Held...)) //nolint:errchkjson // strings do not fail
	return string(text)
}

// ParseBulkPlace parses the text that BulkPlace.String returns.
func ParseBulkPlace(s string) (p BulkPlace, err error) {
	if !strings.HasPrefix(s, "[") {
		p.Place, err = ParsePlace(s)
		return p, err
	}
	var list []string
	if err := json.Unmarshal([]byte(s), &list); err != nil || len(list) == 0 {
		return p, fmt.Errorf("%.100q is not a position of a bulk change; expected one from earlier output, such as 1767225600000/order-42", s)
	}
	p.Held = list[1:]
	p.Place, err = ParsePlace(list[0])
	return p, err
}

// Order is the order by due time and id in which a bulk change processes tasks.
type Order int

// The orders of a bulk change.
const (
	Forwards  Order = iota // from the earliest due time to the latest
	Backwards              // from the latest due time to the earliest
)

// Page reads the next tasks after a position, without locking them. It returns fewer tasks than limit only if there are
// no more.
func (c Conn) Page(ctx context.Context, f Filter, after Place, o Order, limit int) (page []Seen, err error) {
	for {
		read, last, err := c.pagePart(ctx, f, after, o, limit, func(s Seen) { page = append(page, s) })
		if err != nil || read < limit {
			return page, err
		}
		if len(page) >= limit {
			return page[:limit], nil
		}
		after = last // continue, because many consecutive rows may have errors that do not match
	}
}

// pagePart reads the next rows after a position and calls row for the tasks that the filter selects. It returns how
// many rows it has read, and the position of the last one.
func (c Conn) pagePart(ctx context.Context, f Filter, after Place, o Order, limit int, row func(Seen)) (read int, last Place, err error) {
	order, beyond := "due_at, id", ">"
	if o == Backwards {
		order, beyond = "due_at DESC, id DESC", "<"
	}
	where := f.where()
	if after.ID != "" {
		at := Stored(after.DeliverAt)
		where.and(fmt.Sprintf("due_at %s= ? AND (due_at %s ? OR id %s ?)", beyond, beyond, beyond), at, at, after.ID)
	}
	text := "NULL"
	if f.ByError() {
		text = "last_error"
	}
	query := fmt.Sprintf("SELECT id, due_at, version, %s FROM rabbitdelay_tasks%s ORDER BY %s LIMIT %d", text, where, order, limit)
	err = c.each(ctx, query, where.args, func(scan scanner) error {
		var s Seen
		var due int64
		var lastError sql.NullString
		err := scan(&s.ID, cell{"due_at", &due, &RowError{}}, &s.Version, &lastError)
		s.DeliverAt = time.UnixMilli(due)
		read, last = read+1, s.Place
		if err == nil && f.Matches(lastError.String) {
			row(s)
		}
		return err
	})
	return read, last, err
}

// LockTasks locks tasks. It returns the tasks that exist and that it has locked, by id. With SkipLocked, tasks that
// another transaction has locked are missing.
func (c Conn) LockTasks(ctx context.Context, ids []string, l Lock) (map[string]Locked, error) {
	locked := make(map[string]Locked, len(ids))
	query := "SELECT id, version, status FROM rabbitdelay_tasks WHERE id IN (" + marks(len(ids)) + ")" + c.lock(l)
	err := c.each(ctx, query, anys(ids), func(scan scanner) error {
		var id string
		var x Locked
		err := scan(&id, &x.Version, &x.Status)
		locked[id] = x
		return err
	})
	return locked, err
}

// Chosen returns the ids, among those given, whose tasks the filter selects.
func (c Conn) Chosen(ctx context.Context, f Filter, ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	where := f.where()
	where.and("id IN ("+marks(len(ids))+")", anys(ids)...)
	var chosen []string
	err := c.each(ctx, "SELECT id, last_error FROM rabbitdelay_tasks"+where.String(), where.args, func(scan scanner) error {
		var id string
		var lastError sql.NullString
		err := scan(&id, &lastError)
		if err == nil && f.Matches(lastError.String) {
			chosen = append(chosen, id)
		}
		return err
	})
	return chosen, err
}

// ChangeAll changes tasks that the caller has locked. The statement finds them by their ids alone. If it contained the
// filter as well, a database with outdated statistics could use the filter's index and read everything that the filter
// selects, while the rows are locked.
func (c Conn) ChangeAll(ctx context.Context, ids []string, a Assignment) (int64, error) {
	return c.exec(ctx, "UPDATE rabbitdelay_tasks SET "+a.set+" WHERE id IN ("+marks(len(ids))+")", append(a.args, anys(ids)...)...)
}

// DeleteAll deletes tasks that the caller has locked.
func (c Conn) DeleteAll(ctx context.Context, ids []string) (int64, error) {
	return c.exec(ctx, "DELETE FROM rabbitdelay_tasks WHERE id IN ("+marks(len(ids))+")", anys(ids)...)
}
