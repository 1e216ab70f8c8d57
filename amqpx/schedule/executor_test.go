package schedule_test

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// methodsWithExecutor calls do for each method of x whose second argument is an Executor, with valid arguments.
func methodsWithExecutor(t *testing.T, x any, do func(name string, call func(schedule.Executor) error)) {
	t.Helper()
	task := schedule.Task{ID: "t", Queue: "q", DeliverAt: time.Now()}
	given := map[reflect.Type]any{}
	for _, v := range []any{
		task, []schedule.Task{task}, schedule.Recurring{Name: "r", Every: time.Hour, Task: schedule.Task{Queue: "q"}}, []schedule.Recurring{},
		"x", []string{"x"}, time.Now(), time.Second, 1, int64(1), schedule.Filter{},
		topology.Destination{Queue: "q"}, schedule.RateLimit{Queue: "q", PerSecond: 1},
		schedule.Unique{}, func(*schedule.Recurring) error { return nil },
	} {
		given[reflect.TypeOf(v)] = v
	}
	v := reflect.ValueOf(x)
	found := 0
	for i := range v.NumMethod() {
		m, name := v.Method(i), v.Type().Method(i).Name
		if m.Type().NumIn() < 2 || m.Type().In(1) != reflect.TypeFor[schedule.Executor]() {
			continue
		}
		found++
		do(name, func(ex schedule.Executor) error {
			in := []reflect.Value{reflect.ValueOf(t.Context()), reflect.Zero(m.Type().In(1))}
			if ex != nil {
				in[1] = reflect.ValueOf(ex)
			}
			for j := 2; j < m.Type().NumIn() && (!m.Type().IsVariadic() || j != m.Type().NumIn()-1); j++ {
				arg, ok := given[m.Type().In(j)]
				if !ok {
					t.Fatalf("%s has a parameter of type %v, want only types for which this test has a value", name, m.Type().In(j))
				}
				if name == "ScheduleUnique" && j == 2 {
					keyed := task
					keyed.UniqueKey = "k"
					arg = keyed
				}
				in = append(in, reflect.ValueOf(arg))
			}
			out := m.Call(in)
			return errorOf(out[len(out)-1].Interface())
		})
	}
	if found == 0 {
		t.Fatalf("%T has no method with an Executor, want at least 1", x)
	}
}

// errorOf returns the result if it is an error, and the last error of the result if it is a sequence.
func errorOf(result any) (err error) {
	switch r := result.(type) {
	case error:
		return r
	case iter.Seq2[schedule.TaskRow, error]:
		for _, err = range r {
		}
	case iter.Seq2[schedule.Recurring, error]:
		for _, err = range r {
		}
	}
	return err
}

// No method treats a nil executor as the store's own database. Otherwise, if a caller forgot to pass its transaction,
// the change would remain even if that transaction is rolled back.
func TestNilExecutor(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if err := schedule.Migrate(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	s, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for what, ex := range map[string]schedule.Executor{
		"nil": nil, "nil *sql.Tx": (*sql.Tx)(nil), "nil *sql.DB": (*sql.DB)(nil), "pgxtx.On(nil)": pgxtx.On(nil), "pgxtx.On(nil tx)": pgxtx.On((*pgx.Conn)(nil)),
	} {
		for _, x := range []any{s, s.Recurring()} {
			methodsWithExecutor(t, x, func(name string, call func(schedule.Executor) error) {
				if err := call(ex); !errors.Is(err, schedule.ErrNoExecutor) || !strings.Contains(err.Error(), "schedule.NoTx") {
					t.Errorf(`%T.%s on %s: got %v, want schedule.ErrNoExecutor with "schedule.NoTx"`, x, name, what, err)
				}
			})
		}
	}
	if n, err := s.CountUpTo(t.Context(), schedule.NoTx, schedule.Filter{}, 9); n != 0 || err != nil {
		t.Errorf("CountUpTo: got %d tasks, error %v, want 0 and no error", n, err)
	}
	for _, x := range []any{s, s.Recurring()} {
		methodsWithExecutor(t, x, func(name string, call func(schedule.Executor) error) {
			if err := call(schedule.NoTx); errors.Is(err, schedule.ErrNoExecutor) {
				t.Errorf("%T.%s on NoTx: got %v, want no error, or one other than schedule.ErrNoExecutor", x, name, err)
			}
		})
	}
}

// With a nil database, New and Migrate return ErrNoDatabase. The constructors of handlers return nil, which Consume
// refuses.
func TestNilDatabase(t *testing.T) {
	ctx := t.Context()
	effect := func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }
	work := func(context.Context, *amqpx.Delivery, string) (schedule.Func, error) { return nil, nil }
	var none *sql.DB
	for what, db := range map[string]schedule.Database{"nil": nil, "nil *sql.DB": none} {
		_, made := schedule.New(db, nil, schedule.Config{})
		for name, err := range map[string]error{
			"New": made, "schedule.Migrate": schedule.Migrate(ctx, db), "idempotency.Migrate": idempotency.Migrate(ctx, db),
		} {
			if !errors.Is(err, schedule.ErrNoDatabase) {
				t.Errorf("%s with a database that is %s: got %v, want schedule.ErrNoDatabase", name, what, err)
			}
		}
		for name, handler := range map[string]amqpx.Handler{
			"schedule.Handler": schedule.Handler(db, effect), "schedule.LeaseHandler": schedule.LeaseHandler(db, work),
			"idempotency.Handler": idempotency.Handler(db, effect),
		} {
			if handler != nil {
				t.Errorf("%s with a database that is %s: got a handler, want nil", name, what)
			}
		}
	}
}
