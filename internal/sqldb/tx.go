package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// tries is the maximum number of times that Transact runs a transaction that the database rolls back because of other
// transactions.
const tries = 8

// ErrCommit is wrapped by the error of a commit whose outcome is unknown.
var ErrCommit = errors.New("commit failed with an unknown outcome")

// ErrRolledBack is wrapped by the error of a commit that has certainly committed nothing.
var ErrRolledBack = errors.New("rolled back before the commit")

// Transact runs fn in a transaction and commits it. It runs fn again, up to 8 times in total, if the database rolled
// back the transaction because of another one. If fn panics, Transact rolls back and the panic continues. The error of
// a commit whose outcome is unknown wraps ErrCommit.
func Transact(ctx context.Context, db DB, opts *sql.TxOptions, fn func(Tx) error) error {
	pause := 2 * time.Millisecond
	for try := 1; ; try++ {
		err := once(ctx, db, opts, fn)
		if err == nil || try == tries || !Transient(err) || ctx.Err() != nil {
			return err
		}
		// The random part makes it unlikely that two transactions that have deadlocked collide again.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause *= 2
	}
}

func once(ctx context.Context, db DB, opts *sql.TxOptions, fn func(Tx) error) (err error) {
	tx, err := db.Begin(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	committed := false
	defer func() {
		if !committed {
			// This also runs on a panic, which then continues.
			_ = tx.Rollback(ctx)
		}
	}()
	if err := fn(tx); err != nil {
		return ExplainServer(err) // the error may come from a statement that the user's function ran without this package
	}
	committed = true // from now on a rollback has no effect, even if the commit fails
	err = tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrRolledBack, ctx.Err()) // database/sql rolled it back
	case errors.Is(err, sql.ErrTxDone):
		return errors.New("commit: the handler ended the transaction itself; let the caller commit or roll back")
	case Transient(err), errors.Is(err, ErrRolledBack):
		return err
	case aborted(err):
		return fmt.Errorf("%w: a statement had failed, and the handler did not return its error; return every error from the transaction: %w", ErrRolledBack, err)
	}
	return fmt.Errorf("%w: %w", ErrCommit, err)
}

// aborted reports whether err is a PostgreSQL driver's error for a commit that became a rollback because a statement
// had failed earlier.
func aborted(err error) bool {
	text := err.Error()
	return strings.Contains(text, "commit unexpectedly resulted in rollback") || // pgx
		strings.Contains(text, "operation in a failed transaction") // pq
}
