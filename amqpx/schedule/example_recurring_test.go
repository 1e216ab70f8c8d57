package schedule_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A program calls Put for its nightly report each time it starts. In Berlin, 02:30 does not exist on 29 March 2026.
func ExampleRecurringTasks_Put() {
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
	nightly := schedule.Recurring{
		Name: "nightly", Cron: "30 2 * * *", TimeZone: "Europe/Berlin",
		Task: schedule.Task{Queue: "reports"},
	}
	for range 2 {
		change, err := tasks.Recurring().Put(ctx, schedule.NoTx, nightly)
		if err != nil {
			panic(err)
		}
		fmt.Println(change)
	}
	next, err := nightly.Next(time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC), 2)
	if err != nil {
		panic(err)
	}
	for _, o := range next {
		fmt.Println(o.At, o.ID)
	}
	// Output:
	// created
	// unchanged
	// 2026-03-29 03:00:00 +0200 CEST nightly@2026-03-29T01:00:00Z
	// 2026-03-30 02:30:00 +0200 CEST nightly@2026-03-30T00:30:00Z
}

// A handler gets the occurrence from the task's id.
func ExampleParseOccurrence() {
	name, at, ok := schedule.ParseOccurrence("nightly@2026-03-29T01:00:00Z")
	fmt.Println(name, at, ok)
	// Output: nightly 2026-03-29 01:00:00 +0000 UTC true
}
