package taskview

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Store adds the reads of this package to a schedule.Store. It runs no relay.
type Store struct {
	*schedule.Store

	db     *rows.DB
	listed func(topology.Destination) error
}

// New returns a store for a database that schedule.Migrate has prepared. It has no sender. New does no I/O.
func New(db schedule.Database, cfg schedule.Config) (*Store, error) {
	s, err := schedule.New(db, nil, cfg)
	if err != nil {
		return nil, err
	}
	return &Store{Store: s, db: rows.Open(sqldb.Of(db), sqldb.Dialect(cfg.Dialect), cfg.DatabaseNow), listed: cfg.Destination}, nil
}

// Transact calls do in a transaction, commits it, and wakes the relays of this process. It calls do again if the database
// rolled the transaction back because of another one. The text of an error in beginning or committing starts with the
// parameter what.
func (s *Store) Transact(ctx context.Context, what string, do func(tx schedule.Executor) error) error {
	var failed error
	err := sqldb.Transact(ctx, s.db.DB, nil, func(tx sqldb.Tx) error {
		failed = do(sqldb.Executes(tx))
		return failed
	})
	switch {
	case err == nil:
		s.Wake()
		return nil
	case failed != nil:
		return sqldb.Explain(err)
	}
	return fmt.Errorf("%s: %w", what, sqldb.Explain(err))
}

// reading runs read on the database, and prefixes its error with the parameter what.
func reading[T any](ctx context.Context, s *Store, what string, read func(c rows.Conn) (T, error)) (none T, err error) {
	c, err := s.db.Conn(ctx)
	if err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	result, err := read(c)
	if err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	return result, nil
}

// filtered is like reading, for a read that applies a filter. It rejects an invalid filter.
func filtered[T any](ctx context.Context, s *Store, f schedule.Filter, what string, read func(c rows.Conn, f rows.Filter) (T, error)) (none T, err error) {
	chosen := conditions(f)
	if err := chosen.Check(); err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}
	return reading(ctx, s, what, func(c rows.Conn) (T, error) { return read(c, chosen) })
}

// conditions converts a filter, without the fields that apply to List only.
func conditions(f schedule.Filter) rows.Filter {
	return rows.Filter{
		IDs: f.IDs, Queue: f.Queue, Exchange: f.Exchange, Status: string(f.Status), DueFrom: f.DueFrom, DueTo: f.DueTo,
		IDPrefix: f.IDPrefix, Tag: f.Tag, UniqueKey: f.UniqueKey, Header: f.Header, HeaderValue: f.HeaderValue, Error: f.Error, ErrorLike: f.ErrorLike,
	}
}
