package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// gathering is a Gather that inserts its items into a table.
type gathering struct {
	*Gather[string]

	db     *sql.DB
	mu     sync.Mutex
	groups [][]string
	fail   func(ctx context.Context, item string) error
	hold   chan struct{} // do waits until it is closed, if the caller runs alone
}

func newGathering(t *testing.T, most int) *gathering {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "x.db")+"?_pragma=busy_timeout(180000)&_pragma=synchronous(off)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE items (item TEXT)"); err != nil {
		t.Fatal(err)
	}
	g := &gathering{db: db, hold: make(chan struct{}), fail: func(context.Context, string) error { return nil }}
	g.Gather = NewGather(Of(db), nil, most, func(ctx context.Context, tx Tx, items []string) error {
		g.mu.Lock()
		g.groups = append(g.groups, items)
		g.mu.Unlock()
		return g.insert(ctx, tx, items)
	})
	return g
}

func (g *gathering) insert(ctx context.Context, tx Tx, items []string) error {
	for _, item := range items {
		if err := g.fail(ctx, item); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO items VALUES (?)", item); err != nil {
			return err
		}
	}
	return nil
}

// do inserts an item as one caller. A caller that runs alone waits for hold first.
func (g *gathering) do(ctx context.Context, item string) error {
	return g.Do(ctx, item, func() error {
		select {
		case <-g.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
		return Transact(ctx, Of(g.db), nil, func(tx Tx) error { return g.insert(ctx, tx, []string{item}) })
	})
}

// crowd occupies all lanes (the transactions that may run concurrently), queues n more callers, calls before, and then
// frees the lanes. It returns the errors of the n callers.
func (g *gathering) crowd(t *testing.T, n int, before func()) []error {
	t.Helper()
	var group sync.WaitGroup
	errs := make([]error, n)
	for i := range lanes {
		group.Go(func() {
			if err := g.do(t.Context(), fmt.Sprintf("first %d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	g.until(t, func() bool { return g.running == lanes && len(g.waiting) == 0 })
	for i := range n {
		group.Go(func() { errs[i] = g.do(t.Context(), fmt.Sprintf("item %d", i)) })
	}
	g.until(t, func() bool { return len(g.waiting) == n })
	before()
	close(g.hold)
	group.Wait()
	if g.running != 0 || len(g.waiting) != 0 {
		t.Errorf("at the end: got %d running transactions and %d waiting callers, want 0 and 0", g.running, len(g.waiting))
	}
	return errs
}

func (g *gathering) until(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		g.Gather.mu.Lock()
		ok := condition()
		g.Gather.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal("the condition is still false after 3 minutes, want true")
		}
	}
}

func (g *gathering) stored(t *testing.T) map[string]int {
	t.Helper()
	rows, err := g.db.QueryContext(t.Context(), "SELECT item FROM items")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	found := map[string]int{}
	for rows.Next() {
		var item string
		if err := rows.Scan(&item); err != nil {
			t.Fatal(err)
		}
		found[item]++
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestGatherShares(t *testing.T) {
	g := newGathering(t, 20)
	for i, err := range g.crowd(t, 19, func() {}) {
		if err != nil {
			t.Errorf("item %d: got %v, want nil", i, err)
		}
	}
	g.allOnce(t, 19+lanes)
	if len(g.groups) != 1 || len(g.groups[0]) != 19 {
		t.Errorf("the shared transactions contain the items %v, want one transaction with 19 items", g.groups)
	}
}

// allOnce fails the test unless exactly n items are stored, each of them once.
func (g *gathering) allOnce(t *testing.T, n int) {
	t.Helper()
	found := g.stored(t)
	if len(found) != n {
		t.Errorf("the table: got %d stored items, want %d", len(found), n)
	}
	for item, n := range found {
		if n != 1 {
			t.Errorf("item %q is stored %d times, want once", item, n)
		}
	}
}

// If enough callers are waiting to fill a transaction, another one starts without waiting for the running ones, up to
// a limit.
func TestGatherOpensLanes(t *testing.T) {
	const most = 3
	g := newGathering(t, most)
	g.fail = func(context.Context, string) error { <-g.hold; return nil }
	const n = lanes + (mostLanes-lanes)*most + most + 1
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			if err := g.do(t.Context(), fmt.Sprintf("item %d", i)); err != nil {
				t.Error(err)
			}
		})
		if i < lanes {
			g.until(t, func() bool { return g.running == i+1 })
		}
	}
	g.until(t, func() bool { return g.running == mostLanes && len(g.waiting) == most+1 })
	close(g.hold)
	group.Wait()
	g.allOnce(t, n)
	for _, items := range g.groups {
		if len(items) > most {
			t.Errorf("one transaction: got %d items, want at most %d", len(items), most)
		}
	}
	if g.running != 0 || len(g.waiting) != 0 {
		t.Errorf("at the end: got %d running transactions and %d waiting callers, want 0 and 0", g.running, len(g.waiting))
	}
}

// An error from one caller's function does not fail the other callers.
func TestGatherFailsApart(t *testing.T) {
	g := newGathering(t, 100)
	bad := errors.New("bad item")
	g.fail = func(_ context.Context, item string) error {
		if item == "item 3" {
			return bad
		}
		return nil
	}
	for i, err := range g.crowd(t, 10, func() {}) {
		if i == 3 && !errors.Is(err, bad) || i != 3 && err != nil {
			t.Errorf("item %d: got %v, want %v for item 3 and nil for the others", i, err, bad)
		}
	}
	found := g.stored(t)
	if found["item 3"] != 0 || len(found) != 9+lanes {
		t.Errorf("the table: got the items %v, want all except item 3", found)
	}
	for item, n := range found {
		if n != 1 {
			t.Errorf("item %q is stored %d times, want once", item, n)
		}
	}
}

// If the function panics or calls runtime.Goexit for one item in a group, each item is run alone, so other callers
// are not affected.
func TestGatherPanicsWhereItBelongs(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("in the group") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			g := newGathering(t, 100)
			var once sync.Once
			g.fail = func(_ context.Context, item string) error {
				if item == "item 3" {
					once.Do(end) // the second call, which runs the item alone, succeeds
				}
				return nil
			}
			for i, err := range g.crowd(t, 10, func() {}) {
				if err != nil {
					t.Errorf("item %d: got %v, want nil", i, err)
				}
			}
			if found := g.stored(t); len(found) != 10+lanes {
				t.Errorf("the table: got %d stored items %v, want all %d", len(found), found, 10+lanes)
			}
		})
	}
}

// A caller whose context is cancelled while it waits takes part in no transaction.
func TestGatherLeave(t *testing.T) {
	g := newGathering(t, 100)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	errs := g.crowd(t, 5, func() {
		go func() { left <- g.do(ctx, "gave up") }()
		g.until(t, func() bool { return len(g.waiting) == 6 })
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("do with a cancelled context: got %v, want context.Canceled", err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if found := g.stored(t); found["gave up"] != 0 || len(found) != 5+lanes {
		t.Errorf(`the table: got the items %v, want all %d others and not "gave up"`, found, 5+lanes)
	}
}

// If one caller's context is cancelled during a shared transaction, the transaction is rolled back and the other
// callers run alone.
func TestGatherCancelInTransaction(t *testing.T) {
	g := newGathering(t, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	g.fail = func(ctx context.Context, item string) (err error) {
		if item == "item 4" {
			once.Do(func() {
				cancel()
				<-ctx.Done()
				err = ctx.Err()
			})
		}
		return err
	}
	gone := make(chan error, 1)
	errs := g.crowd(t, 5, func() {
		go func() { gone <- g.do(ctx, "cancelled") }()
		g.until(t, func() bool { return len(g.waiting) == 6 })
	})
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("do with a context that is cancelled in the transaction: got %v, want context.Canceled", err)
	}
	if found := g.stored(t); found["cancelled"] != 0 || len(found) != 5+lanes {
		t.Errorf(`the table: got the items %v, want all %d others and not "cancelled"`, found, 5+lanes)
	}
}

// A function cannot commit or roll back the transaction that it shares with others. If it tries, its call returns
// ErrLent, and so does Lend.
func TestLentTransactionsCannotBeEnded(t *testing.T) {
	db := openMemory(t)
	ctx := t.Context()
	for name, end := range map[string]func(*sql.Tx) error{"commit": (*sql.Tx).Commit, "rollback": (*sql.Tx).Rollback} {
		err := Transact(ctx, Of(db), nil, func(shared Tx) error {
			err := Lend(ctx, shared, func(lent Tx) error {
				_, own := Hand(ctx, lent)
				if _, err := own.ExecContext(ctx, "INSERT INTO lent (id, name) VALUES (?, ?)", 1, name); err != nil {
					t.Errorf("insert before %s: got %v, want nil", name, err)
				}
				if err := end(own); !errors.Is(err, ErrLent) {
					t.Errorf("%s of a lent transaction: got %v, want ErrLent", name, err)
				}
				return nil
			})
			var n int
			if qerr := shared.QueryRowContext(ctx, "SELECT COUNT(*) FROM lent").Scan(&n); qerr != nil || n != 1 {
				t.Errorf("after %s: got %d rows in the shared transaction (%v), want 1", name, n, qerr)
			}
			return err
		})
		if !errors.Is(err, ErrLent) {
			t.Errorf("%s: Lend: got %v, want ErrLent", name, err)
		}
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM lent").Scan(&n); err != nil || n != 0 {
		t.Errorf("the table: got %d committed rows, %v, want 0 and no error", n, err)
	}
}

// SQLite may roll back the transaction when a statement fails. Lend returns an error even if the function ignores the
// failure.
func TestLentTransactionsReportIgnoredErrors(t *testing.T) {
	db := openMemory(t)
	err := Transact(t.Context(), Of(db), nil, func(shared Tx) error {
		return Lend(t.Context(), shared, func(lent Tx) error {
			_, own := Hand(t.Context(), lent)
			for range 2 {
				_, _ = own.ExecContext(t.Context(), "INSERT OR ROLLBACK INTO lent (id) VALUES (1)")
			}
			return nil
		})
	})
	if !errors.Is(err, ErrLent) {
		t.Errorf("Lend with a function that ignores failed statements: got %v, want ErrLent", err)
	}
}

// A lent transaction passes arguments, rows and prepared statements to and from the shared one.
func TestLentTransactionsRunStatements(t *testing.T) {
	db := openMemory(t)
	ctx := t.Context()
	err := Transact(ctx, Of(db), nil, func(shared Tx) error {
		return Lend(ctx, shared, func(lent Tx) error {
			_, own := Hand(ctx, lent)
			s, err := own.PrepareContext(ctx, "INSERT INTO lent (id, name) VALUES (?, ?)")
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }()
			for id, name := range []string{"a", "b"} {
				if _, err := s.ExecContext(ctx, id, []byte(name)); err != nil {
					return err
				}
			}
			if _, err := own.ExecContext(ctx, "INSERT INTO lent (id, name) VALUES (:id, NULL)", sql.Named("id", 2)); err != nil {
				return err
			}
			found, err := own.QueryContext(ctx, "SELECT id, name FROM lent ORDER BY id")
			if err != nil {
				return err
			}
			defer func() { _ = found.Close() }()
			var list []string
			for found.Next() {
				var id int64
				var name sql.NullString
				if err := found.Scan(&id, &name); err != nil {
					return err
				}
				list = append(list, fmt.Sprint(id, name.String))
			}
			if got := fmt.Sprint(list); got != "[0a 1b 2]" {
				t.Errorf("the lent transaction reads the rows %s, want [0a 1b 2]", got)
			}
			return found.Err()
		})
	})
	if err != nil {
		t.Error(err)
	}
	var n int
	if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM lent").Scan(&n); err != nil || n != 3 {
		t.Errorf("the table: got %d committed rows, %v, want 3 and no error", n, err)
	}
}

// openMemory opens an in-memory database with the table lent.
func openMemory(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE lent (id INTEGER PRIMARY KEY, name TEXT)"); err != nil {
		t.Fatal(err)
	}
	return db
}
