package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// makeSpace gives the run a schema (PostgreSQL) or a database (MySQL) of its own
// on the server that was given, so that the demo's relay does not see tasks that
// are not the demo's. A user who may not make one shares the database.
func (s *store) makeSpace(ctx context.Context, name string) error {
	if s.dialect == idempotency.SQLite {
		return nil
	}
	u, err := url.Parse(string(s.url))
	if err != nil {
		return errors.New("the URL of a server was expected") // the parser's error quotes it
	}
	var create string
	switch s.dialect {
	case idempotency.PostgreSQL:
		create = "CREATE SCHEMA " + name
		q := u.Query()
		q.Set("search_path", name)
		u.RawQuery = q.Encode()
	case idempotency.MySQL:
		create = "CREATE DATABASE " + name
		u.Path = "/" + name
	}
	if err := s.db.PingContext(ctx); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, create); err != nil {
		return ctx.Err()
	}
	inner, _, err := config.OpenDB(config.URL(u.String()))
	if err == nil {
		s.outer, s.db, s.space = s.db, inner, name
	}
	return err
}

// removeSpace removes it with all that is in it.
func (s *store) removeSpace(ctx context.Context) error {
	drop := "DROP DATABASE %s"
	if s.dialect == idempotency.PostgreSQL {
		drop = "DROP SCHEMA %s CASCADE"
	}
	_, err := s.outer.ExecContext(ctx, fmt.Sprintf(drop, s.space))
	return errors.Join(err, s.outer.Close())
}
