package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/service"
)

func main() {
	if err := run(context.Background()); err != nil {
		slog.Error("the shop has failed", "err", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := service.Open(ctx, service.Options{File: "shop.yaml", Database: pgxtx.Database(pool), Migrate: true})
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, ordersTable); err != nil {
		return errors.Join(err, s.Close(ctx))
	}

	o := &orders{pool: pool, tasks: s.Tasks}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", o.do(o.place))
	mux.HandleFunc("POST /orders/{id}/payment", o.do(o.pay))
	mux.HandleFunc("GET /orders/{id}", o.do(nil))
	mux.Handle("/", service.Probe(s.Health))
	return s.Run(ctx,
		s.Consume("orders.expire", service.TaskHandler(s, expire)),
		service.ServeHTTP("127.0.0.1:8080", mux))
}
