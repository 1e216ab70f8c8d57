package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/service"
	_ "github.com/rabbitdelay/rabbitdelay/config/sqlite" // or postgres, mysql
)

func main() {
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
	return s.Run(ctx, expirer(s), service.ServeHTTP("127.0.0.1:8080", routes(s)))
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
	mux.HandleFunc("GET /orders/{id}", o.do(nil))
	mux.Handle("/", service.Probe(s.Health))
	return mux
}
