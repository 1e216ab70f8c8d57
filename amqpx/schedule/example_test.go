package schedule_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	_ "modernc.org/sqlite" // the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Schedules a post in the transaction that creates it, and then reschedules it. The message for the original time still
// arrives, but has no effect.
func ExampleStore_Schedule() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // each connection to :memory: opens its own database, so use only one
	if err := schedule.Migrate(ctx, db); err != nil {
		panic(err)
	}
	// A process that relays passes an *amqpx.Client instead of nil, and calls Run.
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		panic(err)
	}

	at := time.Date(2026, 1, 2, 8, 0, 0, 0, time.UTC)
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	// ... INSERT INTO posts ... in the same transaction
	if err := tasks.Schedule(ctx, tx, schedule.Task{ID: "post-7", Queue: "posts.publish", DeliverAt: at, Body: []byte("7")}); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}
	if err := tasks.Reschedule(ctx, schedule.NoTx, "post-7", at.Add(time.Hour)); err != nil {
		panic(err)
	}

	handle := schedule.Handler(db,
		func(_ context.Context, _ *sql.Tx, d *amqpx.Delivery) error {
			fmt.Printf("post %s is published\n", d.Body)
			return nil
		},
		schedule.OnSkip(func(_ context.Context, d *amqpx.Delivery, reason schedule.SkipReason) {
			fmt.Printf("message for %s: %s\n", d.DueAt.UTC().Format("15:04"), reason)
		}),
	)
	// client.Consume(ctx, "posts.publish", handle) would call it like this:
	for version := range int64(2) {
		d := &amqpx.Delivery{
			ID: "post-7", Version: version + 1, DueAt: at.Add(time.Duration(version) * time.Hour),
			Queue: "posts.publish", Body: []byte("7"),
		}
		if err := handle(ctx, d); err != nil {
			panic(err)
		}
	}
	for task, err := range tasks.List(ctx, schedule.NoTx, schedule.Filter{Queue: "posts.publish"}) {
		if err != nil {
			panic(err)
		}
		fmt.Println(task.ID, task.Status)
	}
	// Output:
	// message for 08:00: stale
	// post 7 is published
	// post-7 done
}

// Reschedules all tasks of a campaign, and then cancels them.
func ExampleStore_Bulk() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	if err := schedule.Migrate(ctx, db); err != nil {
		panic(err)
	}
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		panic(err)
	}
	at, err := schedule.ParseInstant("2026-12-24 08:00 Europe/Berlin", time.Now())
	if err != nil {
		panic(err)
	}
	for i := range 3 {
		err := tasks.Schedule(ctx, schedule.NoTx, schedule.Task{
			ID: fmt.Sprintf("mail-%d", i), Queue: "mail", DeliverAt: at.Add(time.Duration(i) * time.Minute), Tags: []string{"christmas"},
		})
		if err != nil {
			panic(err)
		}
	}
	campaign := schedule.Filter{Tag: "christmas"}
	if _, err := tasks.Bulk(ctx, campaign, schedule.BulkRescheduleBy(-time.Hour), schedule.BulkOptions{}); err != nil {
		panic(err)
	}
	for task, err := range tasks.List(ctx, schedule.NoTx, campaign) {
		if err != nil {
			panic(err)
		}
		fmt.Println(task.ID, task.DeliverAt.UTC().Format(time.DateTime))
	}
	n, err := tasks.BulkCount(ctx, campaign, schedule.BulkCancel(), schedule.BulkOptions{})
	if err != nil {
		panic(err)
	}
	done, err := tasks.Bulk(ctx, campaign, schedule.BulkCancel(), schedule.BulkOptions{})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d of %d cancelled\n", done.Changed, n)
	// Output:
	// mail-0 2026-12-24 06:00:00
	// mail-1 2026-12-24 06:01:00
	// mail-2 2026-12-24 06:02:00
	// 3 of 3 cancelled
}

// Each edit of a product postpones its reindexing by five seconds, up to a minute after the first edit.
func ExampleStore_ScheduleUnique() {
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // each connection to :memory: opens its own database, so use only one
	if err := schedule.Migrate(ctx, db); err != nil {
		panic(err)
	}
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		panic(err)
	}
	start := time.Now().Truncate(time.Millisecond)
	for _, sinceFirst := range []time.Duration{0, 3 * time.Second, 58 * time.Second, 59 * time.Second} {
		r, err := tasks.ScheduleUnique(ctx, schedule.NoTx, // or the transaction of the edit
			schedule.Task{UniqueKey: "reindex-42", Queue: "search.reindex", DeliverAt: start.Add(sinceFirst + 5*time.Second), Body: []byte("42")},
			schedule.Unique{OnConflict: schedule.PushBackPending, MaxWait: time.Minute})
		if err != nil {
			panic(err)
		}
		fmt.Printf("edit after %v: %s, due %v after the first\n", sinceFirst, r.Outcome, r.DueAt.Sub(start).Round(time.Second))
	}
	// Output:
	// edit after 0s: created, due 5s after the first
	// edit after 3s: pushed-back, due 8s after the first
	// edit after 58s: pushed-back, due 1m0s after the first
	// edit after 59s: kept, due 1m0s after the first
}
