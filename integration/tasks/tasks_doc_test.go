package tasks_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// documented returns the statements in docs/sql for a database. The keys are the first words of their comments.
func documented(t *testing.T, d idempotency.Dialect) map[string]string {
	t.Helper()
	text, err := os.ReadFile(map[idempotency.Dialect]string{
		idempotency.PostgreSQL: "../../docs/sql/postgresql.sql", idempotency.MySQL: "../../docs/sql/mysql.sql", idempotency.SQLite: "../../docs/sql/sqlite.sql",
	}[d])
	if err != nil {
		t.Fatal(err)
	}
	statements := map[string]string{}
	for _, m := range regexp.MustCompile(`(?ms)^-- ([^\n:]+)[^\n]*\n([A-Z].*?);$`).FindAllStringSubmatch(string(text), -1) {
		statements[m[1]] = m[2]
	}
	return statements
}

// namedQuery replaces the :parameters of a documented statement with question marks, and passes the name of each to
// value.
func namedQuery(statement string, value func(name string)) string {
	return regexp.MustCompile(`:[a-z]+`).ReplaceAllStringFunc(statement, func(name string) string {
		value(name[1:])
		return "?"
	})
}

// named runs a documented statement with the given values for its :parameters, and returns the number of changed rows.
func named(t *testing.T, db businessDB, statement string, values map[string]any) int64 {
	t.Helper()
	var args []any
	query := namedQuery(statement, func(name string) {
		v, ok := values[name]
		if !ok {
			t.Fatalf("statement %s: no value for %s", statement, name)
		}
		args = append(args, v)
	})
	res, err := db.ExecContext(t.Context(), db.bind(query), args...)
	if err != nil {
		t.Fatalf("statement %s: %v", statement, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rowOf returns a task's row as text, by column.
func rowOf(t *testing.T, db businessDB, id string) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), db.bind("SELECT * FROM rabbitdelay_tasks WHERE id = ?"), id)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	if !rows.Next() {
		t.Fatalf("got no row with the id %s (error %v), want one", id, rows.Err())
	}
	values := make([]sql.NullString, len(columns))
	dest := make([]any, len(columns))
	for i := range values {
		dest[i] = &values[i]
	}
	if err := rows.Scan(dest...); err != nil {
		t.Fatal(err)
	}
	row := map[string]string{}
	for i, c := range columns {
		row[c] = "NULL"
		if values[i].Valid {
			row[c] = values[i].String
		}
	}
	return row
}

// same compares the row that a documented statement wrote with the one that the API wrote. Times may differ slightly.
func same(t *testing.T, what string, bySQL, byAPI map[string]string) {
	t.Helper()
	for column, want := range byAPI {
		got := bySQL[column]
		if slices.Contains([]string{"due_at", "created_at", "updated_at", "finished_at"}, column) {
			a, errA := strconv.ParseInt(got, 10, 64)
			b, errB := strconv.ParseInt(want, 10, 64)
			if errA == nil && errB == nil && a-b < 60_000 && b-a < 60_000 {
				continue
			}
		}
		if got != want {
			t.Errorf("%s: the documented statement set column %s to %q, want %q as with the API", what, column, got, want)
		}
	}
}

// Every statement in docs/sql works unchanged, and has the same effect on the row as the API.
func TestDocumentedTaskStatements(t *testing.T) {
	t.Parallel()
	eachDatabase(t, documentedTaskStatements)
}

func documentedTaskStatements(t *testing.T, db businessDB) {
	t.Helper()
	const id = "order-42-expire"
	s := newStore(t, db, nil, schedule.Config{})
	doc := documented(t, db.dialect)
	if len(doc) != 21 {
		t.Fatalf("docs/sql contains %d statements for %s, want 21", len(doc), db.dialect)
	}
	body := []byte(`{"order":42}`)
	empty := func() { db.mustExec(t, "DELETE FROM rabbitdelay_tasks") }
	// worn sets the columns of a row as if a relay and a consumer had used it.
	worn := func(status schedule.Status) {
		t.Helper()
		empty()
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{
			ID: id, Queue: "orders.expire", DeliverAt: time.Now().Add(10 * time.Minute), Body: body,
		}))
		db.mustExec(t, `UPDATE rabbitdelay_tasks SET version = 3, attempts = 2, last_error = 'x', sent_at = 5, sends = 4, send_failures = 1, resend_at = 9,
			claimed_until = 99, content_type = 'x', headers = '{"a":"b"}'`)
		if status != schedule.StatusPending {
			db.mustExec(t, "UPDATE rabbitdelay_tasks SET finished_at = 7, status = ?", string(status))
		}
	}
	in := func(d time.Duration) time.Time { return time.Now().Add(d) }

	empty()
	named(t, db, doc["schedule"], nil)
	bySQL := rowOf(t, db, id)
	if _, err := db.ExecContext(t.Context(), doc["schedule"]); err == nil {
		t.Error("scheduling an id twice: got no error")
	}
	empty()
	suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: "orders.expire", DeliverAt: in(30 * time.Minute), Body: body}))
	same(t, "schedule", bySQL, rowOf(t, db, id))

	empty()
	named(t, db, doc["schedule to an exchange, with headers"], nil)
	bySQL = rowOf(t, db, "post-7")
	empty()
	suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{
		ID: "post-7", Exchange: "events", RoutingKey: "post.publish", DeliverAt: in(24 * time.Hour), Body: []byte(`{"post":7}`),
		ContentType: "application/json", Headers: map[string]string{"tenant": "blue"},
	}))
	same(t, "exchange", bySQL, rowOf(t, db, "post-7"))

	for _, c := range []struct {
		statement string
		from      schedule.Status
		refused   []schedule.Status // statuses in which the statement changes nothing
		do        func() error
	}{
		{"schedule, or replace the task that has this id", schedule.StatusCancelled, nil, func() error {
			return s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Queue: "orders.expire", DeliverAt: in(45 * time.Minute), Body: body, Replace: true})
		}},
		{"reschedule", schedule.StatusPending, []schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusFailed}, func() error {
			return s.Reschedule(t.Context(), schedule.NoTx, id, in(time.Hour))
		}},
		{"run now", schedule.StatusPending, []schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusFailed}, func() error {
			return s.RunNow(t.Context(), schedule.NoTx, id)
		}},
		{"cancel", schedule.StatusPending, []schedule.Status{schedule.StatusDone, schedule.StatusCancelled, schedule.StatusFailed}, func() error {
			return s.Cancel(t.Context(), schedule.NoTx, id)
		}},
		{"revive", schedule.StatusFailed, []schedule.Status{schedule.StatusPending, schedule.StatusDone, schedule.StatusCancelled}, func() error {
			return s.Revive(t.Context(), schedule.NoTx, id, time.Now())
		}},
	} {
		worn(c.from)
		other := func() {
			if c.refused == nil { // it replaces a task in any status
				db.mustExec(t, "UPDATE rabbitdelay_tasks SET queue = '', exchange = 'e', routing_key = 'k', created_at = 1")
			}
		}
		other()
		if n := named(t, db, doc[c.statement], nil); n == 0 {
			t.Errorf("the statement %q changed 0 rows, want at least 1", c.statement)
		}
		bySQL := rowOf(t, db, id)
		worn(c.from)
		other()
		suite.MustSucceed(t, c.do())
		same(t, c.statement, bySQL, rowOf(t, db, id))
		for _, status := range c.refused {
			worn(status)
			if n := named(t, db, doc[c.statement], nil); n != 0 {
				t.Errorf("the statement %q changed %d rows of a task that is %s, want 0", c.statement, n, status)
			}
		}
	}

	worn(schedule.StatusPending)
	due, created := db.queryInt(t, "SELECT due_at FROM rabbitdelay_tasks"), db.queryInt(t, "SELECT created_at FROM rabbitdelay_tasks")
	for _, x := range []struct {
		id           string
		version      int
		created, due int64
		want         int64
	}{
		{"other", 3, created, due, 0}, {id, 2, created, due, 0}, {id, 4, created, due, 0}, {id, 3, created - 1, due, 0},
		{id, 3, created, due - 1, 0}, {id, 3, created, due, 1}, {id, 3, created, due, 0},
	} {
		if n := named(t, db, doc["consume"], map[string]any{"id": x.id, "version": x.version, "created": x.created, "due": x.due}); n != x.want {
			t.Errorf("consume %+v changed %d rows, want %d", x, n, x.want)
		}
	}
	if got := taskOf(t, s, id); got.Status != schedule.StatusDone || time.Since(got.FinishedAt).Abs() > time.Minute {
		t.Errorf("after consume: got %+v, want Status = schedule.StatusDone and FinishedAt within 1m of now", got)
	}
	consumeFromExchange(t, s, db, doc)
	worn(schedule.StatusPending)
	created = db.queryInt(t, "SELECT created_at FROM rabbitdelay_tasks")
	for _, x := range []struct{ created, want int64 }{{created - 1, 0}, {created, 1}, {created, 0}} {
		if n := named(t, db, doc["fail"], map[string]any{"id": id, "version": 3, "created": x.created, "attempt": 5, "error": "boom"}); n != x.want {
			t.Errorf("fail with created = %d changed %d rows, want %d", x.created, n, x.want)
		}
	}
	if got := taskOf(t, s, id); got.Status != schedule.StatusFailed || got.Attempts != 5 || got.LastError != "boom" || got.FinishedAt.IsZero() {
		t.Errorf(`after fail: got %+v, want Status = schedule.StatusFailed, Attempts = 5, LastError = "boom" and FinishedAt not zero`, got)
	}

	pauses(t, s, db, doc)

	worn(schedule.StatusPending)
	for statement, want := range map[string]string{
		"list":  fmt.Sprintf("[%s %d 3 2 x]", id, db.queryInt(t, "SELECT due_at FROM rabbitdelay_tasks")),
		"count": "[orders.expire pending 1]",
	} {
		if got := fmt.Sprint(tableOf(t, db, doc[statement])...); got != want {
			t.Errorf("the statement %q returned %s, want %s", statement, got, want)
		}
	}
}

// pauses runs the statements that pause and resume a queue, in the first round without a row for the queue.
func pauses(t *testing.T, s *schedule.Store, db businessDB, doc map[string]string) {
	t.Helper()
	queue := topology.Destination{Queue: "orders.expire"}
	row := func() string {
		return fmt.Sprint(tableOf(t, db, "SELECT exchange, CASE WHEN paused_at IS NULL THEN 'runs' ELSE 'paused' END, paused_by, per_second, burst, spread_due, spread_until, spread_rate, spread_free FROM rabbitdelay_destinations WHERE queue = 'orders.expire'"))
	}
	db.mustExec(t, "DELETE FROM rabbitdelay_destinations") // an earlier test may have left rows
	for round := range 2 {
		for _, statement := range []string{"pause a queue", "resume"} {
			named(t, db, doc[statement], nil)
			bySQL := row()
			if round == 0 {
				db.mustExec(t, "DELETE FROM rabbitdelay_destinations")
			}
			suite.MustSucceed(t, s.Pause(t.Context(), schedule.NoTx, queue, "me"))
			if statement == "resume" {
				suite.MustSucceed(t, s.Resume(t.Context(), schedule.NoTx, queue, 0))
			}
			if byAPI := row(); bySQL != byAPI {
				t.Errorf("%s, round %d: the documented statement wrote %s, want %s as with the API", statement, round, bySQL, byAPI)
			}
		}
	}
	suite.MustSucceed(t, s.Pause(t.Context(), schedule.NoTx, queue, "somebody else"))
	before := tableOf(t, db, "SELECT paused_at, paused_by FROM rabbitdelay_destinations")
	named(t, db, doc["pause a queue"], nil)
	if after := tableOf(t, db, "SELECT paused_at, paused_by FROM rabbitdelay_destinations"); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after a second pause the row is %v, want %v", after, before)
	}
}

// consumeFromExchange runs the statements for a task that was sent to an exchange, for several queues and alongside
// schedule.Handler.
func consumeFromExchange(t *testing.T, s *schedule.Store, db businessDB, doc map[string]string) {
	t.Helper()
	due := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "e", Exchange: "events", DeliverAt: due}))
	suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "cancelled", Exchange: "events", DeliverAt: due}))
	suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, "cancelled"))
	for _, x := range []struct {
		id, queue string
		version   int
		due       time.Time
		want      int64
	}{
		{"cancelled", "mail", 1, due, 0},
		{"e", "mail", 2, due, 0},
		{"e", "mail", 1, due.Add(-time.Millisecond), 0},
		{"e", "mail", 1, due, 1},
		{"e", "mail", 1, due, 0},
		{"e", "audit", 1, due, 1},
		{"e", "audit", 1, due, 0},
	} {
		values := map[string]any{"id": x.id, "version": x.version, "created": taskOf(t, s, x.id).CreatedAt.UnixMilli(), "due": x.due.UnixMilli(), "queue": x.queue}
		named(t, db, doc["consume from an exchange"], values)
		if n := named(t, db, doc["record the effect"], values); n != x.want {
			t.Errorf("record the effect %+v inserted %d rows, want %d", x, n, x.want)
		}
	}
	var effects, skips int
	handle := schedule.Handler(db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error { effects++; return nil },
		schedule.OnSkip(func(_ context.Context, _ *amqpx.Delivery, reason schedule.SkipReason) {
			if reason == schedule.SkipDuplicate {
				skips++
			}
		}))
	for _, queue := range []string{"mail", "search", "audit", "search"} {
		suite.MustSucceed(t, handle(t.Context(), &amqpx.Delivery{ID: "e", Queue: queue, Version: 1, DueAt: due}))
	}
	if effects != 1 || skips != 3 {
		t.Errorf("the handler had %d effects and skipped %d deliveries, want 1 and 3", effects, skips)
	}
	if got := taskOf(t, s, "e"); got.Status != schedule.StatusDone || time.Since(got.FinishedAt).Abs() > time.Minute {
		t.Errorf("after the effects: got %+v, want Status = schedule.StatusDone and FinishedAt within 1m of now", got)
	}
}

// After a Go handler has recorded a failed attempt for a redelivered message, a consumer in another language can handle
// the next delivery, and has the effect once.
func TestEffectByStatementAfterAGoAttempt(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db businessDB) {
		s := newStore(t, db, nil, schedule.Config{})
		doc := documented(t, db.dialect)
		due := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
		fails := schedule.Handler(db.DB, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return errors.New("it fails") })
		record := func(id string, version int) (changed int64) {
			values := map[string]any{"id": id, "version": version, "created": taskOf(t, s, id).CreatedAt.UnixMilli(), "due": due.UnixMilli(), "queue": "mail"}
			named(t, db, doc["consume from an exchange"], values)
			if n := named(t, db, doc["record the effect"], values); n > 0 {
				return n
			}
			return named(t, db, doc["record the effect of a later attempt"], values)
		}
		for _, id := range []string{"e", "cancelled"} {
			suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: id, Exchange: "events", DeliverAt: due}))
			if fails(t.Context(), &amqpx.Delivery{ID: id, Queue: "mail", Exchange: "events", Version: 1, DueAt: due, Redelivered: true, MaxAttempts: 5, Attempt: 1}) == nil {
				t.Fatal("the failing handler returned no error")
			}
		}
		suite.MustSucceed(t, s.Cancel(t.Context(), schedule.NoTx, "cancelled"))
		for _, x := range []struct {
			id      string
			version int
			want    int64
		}{{"cancelled", 1, 0}, {"e", 2, 0}, {"e", 1, 1}, {"e", 1, 0}} {
			if n := record(x.id, x.version); n != x.want {
				t.Errorf("%+v: the statements changed %d rows, want %d", x, n, x.want)
			}
		}
		if got, err := db.view(t).Effects(t.Context(), "e"); err != nil || len(got) != 1 || got[0].DoneAt.IsZero() {
			t.Errorf("Effects returned %+v, %v, want no error and one effect with DoneAt set", got, err)
		}
		// While a LeaseHandler is working, the statements record no effect.
		suite.MustSucceed(t, s.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "leased", Exchange: "events", DeliverAt: due}))
		work := schedule.LeaseHandler(db.DB, func(context.Context, *amqpx.Delivery, string) (schedule.Func, error) {
			if n := record("leased", 1); n != 0 {
				t.Errorf("while another attempt holds the lease, the statements changed %d rows, want 0", n)
			}
			return nil, nil
		})
		suite.MustSucceed(t, work(t.Context(), &amqpx.Delivery{ID: "leased", Queue: "mail", Exchange: "events", Version: 1, DueAt: due, MaxAttempts: 5, Attempt: 1}))
	})
}

// tableOf returns the result of a query.
func tableOf(t *testing.T, db businessDB, query string) (table []any) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("query %s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		row := make([]string, len(columns))
		dest := make([]any, len(columns))
		for i := range row {
			dest[i] = &row[i]
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		table = append(table, row)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return table
}
