package tasks_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/database"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// The listener wakes the relay for tasks that are due soon, returns an error if its connection is lost, and returns
// when its context is cancelled.
func TestListener(t *testing.T) {
	t.Parallel()
	db := openServer(t, idempotency.PostgreSQL, database.PostgreSQL)
	suite.MustSucceed(t, schedule.Migrate(t.Context(), db.DB))
	l, err := config.Listener(config.URL(db.dsn))
	suite.MustSucceed(t, err)
	woken := make(chan struct{}, 100)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	listen := func() { ended <- l.Listen(ctx, func() { woken <- struct{}{} }) }
	wake := func(why string) {
		t.Helper()
		select {
		case <-woken:
		case err := <-ended:
			t.Fatalf("%s: Listen returned %v, want a call of its function", why, err)
		case <-time.After(suite.Patience):
			t.Fatalf("%s: Listen did not call its function within %v", why, suite.Patience)
		}
	}
	end := func(why string) error {
		t.Helper()
		select {
		case err := <-ended:
			return err
		case <-time.After(suite.Patience):
			t.Fatalf("%s: Listen did not return within %v", why, suite.Patience)
			return nil
		}
	}
	insert := func(id string, due time.Time) {
		t.Helper()
		db.mustExec(t, "INSERT INTO rabbitdelay_tasks (id, queue, due_at) VALUES (?, 'q', ?)", id, due.UnixMilli())
	}

	go listen()
	wake("at the start")
	insert("far", time.Now().Add(time.Hour))
	insert("near", time.Now())
	wake("a near task")
	db.mustExec(t, "UPDATE rabbitdelay_tasks SET due_at = 1 WHERE id = 'far'")
	wake("a task that has moved near")
	// Notifications arrive in the order of the commits, so one for the far task would have
	// arrived by now.
	if len(woken) > 0 {
		t.Errorf("the relay was woken %d more times for a task that is due in an hour, want 0", len(woken))
	}

	db.mustExec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
	if err := end("the server has closed the connection"); err == nil || !strings.HasPrefix(err.Error(), "listening for tasks: ") {
		t.Errorf(`got error %v, want an error beginning with "listening for tasks: "`, err)
	}
	go listen()
	wake("listening again")
	cancel()
	if err := end("the context was cancelled"); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want context.Canceled", err)
	}
	suite.Eventually(t, "its connection is closed", func() bool {
		return db.queryInt(t, "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'") == 0
	})
}

// Only PostgreSQL has notifications. If its server cannot be reached, the error does not contain the password.
func TestListenerElsewhere(t *testing.T) {
	t.Parallel()
	for _, u := range []config.URL{"sqlite:x.db", "mysql://u:hunter2@h/d"} {
		if l, err := config.Listener(u); l != nil || err != nil {
			t.Errorf("%s: got %v, %v, want nil and no error", u, l, err)
		}
	}
	if _, err := config.Listener("oracle://u:hunter2@h/d"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf(`got error %v, want an error and no "hunter2" in it`, err)
	}
	l, err := config.Listener("postgres://u:hunter2@127.0.0.1:1/d")
	suite.MustSucceed(t, err)
	if err := l.Listen(t.Context(), func() { t.Error("Listen called its function without a connection") }); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf(`got error %v, want an error and no "hunter2" in it`, err)
	}
}
