package service

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func standard(context.Context, *sql.Tx, *amqpx.Delivery) error { return nil }

func ofPgx(context.Context, pgx.Tx, *amqpx.Delivery) error { return nil }

// TaskHandler and IdempotentHandler panic if the handler's kind of transaction does not match the service's database,
// and return nil if the service has no database.
func TestHandlersFitTheDatabase(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // no connection is opened
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for name, c := range map[string]struct {
		database       schedule.Database
		standard, pgxs string // the wanted text of the panic, or "nil" or "handler" if the constructor returns without one
	}{
		"none":         {nil, "nil", "nil"},
		"database/sql": {db, "handler", "expected a *sql.Tx"},
		"pgx":          {pgxtx.Database(pool), "expected a pgx.Tx", "handler"},
	} {
		s := &Service{database: c.database}
		for want, create := range map[string]func() amqpx.Handler{
			"task standard " + c.standard:       func() amqpx.Handler { return TaskHandler(s, standard) },
			"task pgx " + c.pgxs:                func() amqpx.Handler { return TaskHandler(s, ofPgx) },
			"idempotent standard " + c.standard: func() amqpx.Handler { return IdempotentHandler(s, standard) },
			"idempotent pgx " + c.pgxs:          func() amqpx.Handler { return IdempotentHandler(s, ofPgx) },
		} {
			got := made(create)
			if wanted := strings.SplitN(want, " ", 3)[2]; !strings.Contains(got, wanted) {
				t.Errorf("database %s, %s: got %q, want it to contain %q", name, want, got, wanted)
			}
		}
	}
}

// made returns the result of a constructor, or the text of its panic.
func made(create func() amqpx.Handler) (what string) {
	defer func() {
		if p := recover(); p != nil {
			what, _ = p.(string)
		}
	}()
	if create() == nil {
		return "nil"
	}
	return "handler"
}

// A service with a pgx pool has no DB, and Consume rejects a handler that needs one.
func TestConsumeRefusesAHandlerWithoutADatabase(t *testing.T) {
	srv := amqptest.Start(t, amqptest.Options{})
	client, err := amqpx.Open(t.Context(), amqpx.Config{URL: srv.URL(), Dial: srv.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.Background())
	s := &Service{Client: client}
	err = s.Consume("q", schedule.Handler(s.DB, standard))(t.Context())
	if !errors.Is(err, amqpx.ErrConfig) || !strings.Contains(err.Error(), "pgxtx.TaskHandler") {
		t.Errorf(`Consume: got %v, want amqpx.ErrConfig with "pgxtx.TaskHandler" in its text`, err)
	}
}
