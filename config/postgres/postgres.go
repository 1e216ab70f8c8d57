// Package postgres enables package config to open postgres:// and postgresql:// URLs, with pgx. Import it only for
// this effect:
//
//	import _ "github.com/rabbitdelay/rabbitdelay/config/postgres"
package postgres

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config/internal/dbdriver"
)

func init() { //nolint:gochecknoinits // programs import the package only for this registration, like the drivers of database/sql
	dbdriver.Register(schedule.PostgreSQL, dbdriver.Driver{
		Check: func(u string) error { _, err := parse(u); return err },
		Open:  open, Listener: listener,
	})
}

func open(u string) (*sql.DB, error) {
	cfg, err := parse(u)
	if err != nil {
		return nil, err
	}
	if parsed, err := url.Parse(u); err == nil && parsed.Query().Has("default_query_exec_mode") {
		return stdlib.OpenDB(*cfg), nil // the user has chosen the mode in the URL
	}
	return sql.OpenDB(&connector{cfg: cfg}), nil
}

func listener(u string) (schedule.Listener, error) {
	cfg, err := parse(u)
	if err != nil {
		return nil, err
	}
	return pgxtx.Listener(func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, cfg.Copy()) }), nil
}

var errURL = errors.New("expected a URL such as postgres://user:password@host:5432/database, with special characters in user and password percent-encoded")

func parse(u string) (*pgx.ConnConfig, error) {
	// Check the form first, because ParseConfig also accepts other forms, and its errors quote their input. It also
	// takes the first @ for the end of the password, so that the rest of a password with an @ would become part of the
	// host.
	_, rest, _ := strings.Cut(u, ":")
	if _, err := url.Parse(u); err != nil || !strings.HasPrefix(rest, "//") || strings.Count(rest, "@") > 1 {
		return nil, errURL
	}
	cfg, err := pgx.ParseConfig(u)
	if err != nil {
		return nil, errURL
	}
	return cfg, nil
}
