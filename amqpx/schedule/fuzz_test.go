package schedule

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// FuzzTaskID checks that an id is either refused with a TaskError, or accepted unchanged by every part of the store and
// the handler.
func FuzzTaskID(f *testing.F) {
	for _, id := range []string{
		"order-42-expire", "", " ", "a ", "a\x00b", "\xff", strings.Repeat("x", 255), strings.Repeat("x", 256),
		"'; DROP TABLE rabbitdelay_tasks; --", "%_", "ß", "\u202e",
	} {
		f.Add(id, int64(1))
	}
	f.Add("order", int64(-1))
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		f.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	f.Cleanup(func() { _ = db.Close() })
	if err := Migrate(f.Context(), db); err != nil {
		f.Fatal(err)
	}
	store, err := New(db, nil, Config{})
	if err != nil {
		f.Fatal(err)
	}
	handle := Handler(db, func(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil })
	f.Fuzz(func(t *testing.T, id string, version int64) {
		ctx := t.Context()
		task := Task{ID: id, Queue: "q", DeliverAt: time.Unix(1e9, 0)}
		possible := id != "" && len(id) <= 255 && utf8.ValidString(id) && !strings.ContainsRune(id, 0) && !strings.HasSuffix(id, " ")
		err := store.Schedule(ctx, NoTx, replacing(task))
		if _, refused := errors.AsType[*TaskError](err); refused == possible || err != nil && possible {
			t.Fatalf("id %q: got %v, want a *TaskError only for an impossible id", id, err)
		}
		err = handle(ctx, &amqpx.Delivery{ID: id, Version: version, Attempt: 1, MaxAttempts: 2})
		if notTask := errors.Is(err, ErrNotTask) && amqpx.IsRejected(err); notTask == (possible && version >= 1) || err != nil && !notTask {
			t.Fatalf("a message with id %q and version %d: got %v, want ErrNotTask only for an impossible id or version", id, version, err)
		}
		if !possible {
			return
		}
		got, err := store.Get(ctx, NoTx, id)
		if err != nil || got.ID != id {
			t.Fatalf("Get(%q): got the id %q and the error %v, want the same id and no error", id, got.ID, err)
		}
		if want := map[bool]Status{true: StatusDone, false: StatusPending}[version == got.Version]; got.Status != want {
			t.Fatalf("id %q: after a message of version %d, the task of version %d is %s, want %s", id, version, got.Version, got.Status, want)
		}
	})
}
