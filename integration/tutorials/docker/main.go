package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/service"
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite" // or postgres, mysql
)

func main() {
	run := run
	if len(os.Args) == 2 && os.Args[1] == "healthcheck" {
		run = healthcheck
	}
	if err := run(context.Background()); err != nil {
		slog.Error("the shop has failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	s, err := open(ctx, service.Options{})
	if err != nil {
		return err
	}
	return s.Run(ctx, expirer(s), reporter(s), service.ServeHTTP(":8080", routes(s)))
}

// healthcheck asks the shop in the same container whether it runs.
func healthcheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:8080/healthz", http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the shop answers %s, expected 200 OK", answer.Status)
	}
	return nil
}

// reporter consumes the tasks that recur every morning.
func reporter(s *service.Service) service.Part {
	return s.Consume("reports", schedule.Handler(s.DB, func(ctx context.Context, tx *sql.Tx, _ *amqpx.Delivery) error {
		var unpaid int
		err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE status = 'unpaid'").Scan(&unpaid)
		slog.Info("report", "unpaid", unpaid)
		return err
	}))
}

// open connects to the broker and the database, and creates the tables that do not exist.
func open(ctx context.Context, options service.Options) (*service.Service, error) {
	options.File, options.Migrate = "shop.yaml", true
	s, err := service.Open(ctx, options)
	if err != nil {
		return nil, err
	}
	if _, err := s.DB.ExecContext(ctx, ordersTable); err != nil {
		return nil, errors.Join(err, s.Close(ctx))
	}
	return s, nil
}

// expirer consumes the messages of the tasks that place schedules.
func expirer(s *service.Service) service.Part {
	return s.Consume("orders.expire", schedule.Handler(s.DB, expire))
}

func routes(s *service.Service) http.Handler {
	o := &orders{db: s.DB, tasks: s.Tasks}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", o.do(o.place))
	mux.HandleFunc("POST /orders/{id}/payment", o.do(o.pay))
	mux.HandleFunc("GET /orders/{id}", o.do(nil))
	mux.Handle("/", service.Probe(s.Health))
	return mux
}
