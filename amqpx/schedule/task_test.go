package schedule

import (
	"context"
	"database/sql"
	"math"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// No instant overflows into another: what is too far away is refused, and the
// past is the past.
func TestInstantsDoNotOverflow(t *testing.T) {
	for _, c := range []struct {
		at       time.Time
		possible bool
	}{
		{time.Unix(math.MaxInt64, 0), false}, // "never"
		{time.UnixMilli(math.MaxInt64), false},
		{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), false},
		{time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), true},
		{time.Unix(math.MinInt64, 0), true},
		{time.UnixMilli(math.MinInt64), true},
		{time.Unix(-1, 0), true},
	} {
		task := &rows.Task{ID: "a", Queue: "q", DeliverAt: c.at}
		if err := relay.Check(task, 1); (err == nil) != c.possible {
			t.Errorf("%v (%d s): %v", c.at, c.at.Unix(), err)
		}
		if ms := rows.Millis(c.at); ms < 0 || c.at.Unix() < 0 && ms != 0 {
			t.Errorf("%v: %d ms", c.at, ms)
		}
	}
}

// meanwhile is a database to which something happens after the next statement.
type meanwhile struct {
	*sql.DB

	happens func()
}

func (m *meanwhile) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	r, err := m.DB.ExecContext(ctx, query, args...)
	if f := m.happens; f != nil {
		m.happens = nil
		f()
	}
	return r, err
}

// A change that finds no task, which appears before it can say so, changes that one.
func TestChangeOfATaskThatAppears(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	task := Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(time.Hour)}
	ex := &meanwhile{db, func() { check(t, s.Schedule(t.Context(), NoTx, task)) }}
	check(t, s.Cancel(t.Context(), ex, "a"))
	got, err := s.Get(t.Context(), NoTx, "a")
	check(t, err)
	if got.Status != StatusCancelled {
		t.Errorf("the task is %s", got.Status)
	}
}
