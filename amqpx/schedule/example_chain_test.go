package schedule_test

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// An export has three parts. The handler of each part decrements a counter in its transaction, and the last one
// schedules the next step. Each part is counted once, even if its message is delivered twice.
func ExampleHandler_chain() {
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
	if _, err := db.ExecContext(ctx,
		"CREATE TABLE exports (id TEXT PRIMARY KEY, parts_left INT NOT NULL); INSERT INTO exports VALUES ('export-7', 3)"); err != nil {
		panic(err)
	}
	tasks, err := schedule.New(db, nil, schedule.Config{})
	if err != nil {
		panic(err)
	}
	at := time.Now()
	for _, id := range []string{"part-1", "part-2", "part-3"} {
		if err := tasks.Schedule(ctx, schedule.NoTx, schedule.Task{ID: id, Queue: "exports.part", DeliverAt: at}); err != nil {
			panic(err)
		}
	}

	handle := schedule.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		// ... write the part ... and update the counter last, because other handlers wait for its lock
		if _, err := tx.ExecContext(ctx, "UPDATE exports SET parts_left = parts_left - 1 WHERE id = 'export-7'"); err != nil {
			return err
		}
		var left int
		if err := tx.QueryRowContext(ctx, "SELECT parts_left FROM exports WHERE id = 'export-7'").Scan(&left); err != nil {
			return err
		}
		fmt.Printf("%s is done, %d left\n", d.ID, left)
		if left > 0 {
			return nil
		}
		return tasks.Schedule(ctx, tx, schedule.Task{ID: "export-7-mail", Queue: "exports.mail", DeliverAt: time.Now().Add(time.Minute)})
	})
	for _, id := range []string{"part-2", "part-1", "part-1", "part-3"} {
		if err := handle(ctx, &amqpx.Delivery{ID: id, Queue: "exports.part", Version: 1, DueAt: at}); err != nil {
			panic(err)
		}
	}
	next, err := tasks.Get(ctx, schedule.NoTx, "export-7-mail")
	if err != nil {
		panic(err)
	}
	fmt.Println(next.ID, next.Status)
	// Output:
	// part-2 is done, 2 left
	// part-1 is done, 1 left
	// part-3 is done, 0 left
	// export-7-mail pending
}
