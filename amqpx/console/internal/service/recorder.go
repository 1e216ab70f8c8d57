package service

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Recorder writes entries of the audit for what is done outside of a Core.
type Recorder struct{ table table }

// NewRecorder returns the audit of a database.
func NewRecorder(db *sql.DB) *Recorder {
	on := sqldb.Of(db)
	return &Recorder{table{db: on, dialect: sqldb.NewResolver(on, "")}}
}

// ErrNotRecorded means that the audit could not be written, and so nothing was done.
var ErrNotRecorded = errors.New("nothing was done, because it could not be recorded")

// recording bounds a statement of the audit.
const recording = 10 * time.Second

// Record writes an entry of who, calls do, and adds the outcome to it: what do returns, in a
// line, and its error. Do gets the entry's id.
func (r *Recorder) Record(ctx context.Context, who string, e Entry, do func(id string) (result string, err error)) error {
	e = newEntry(Identity{Name: who}, e)
	adding, cancel := context.WithTimeout(ctx, recording)
	defer cancel()
	if err := r.table.add(adding, record{Job: Job{Entry: e, ID: e.ID}}); err != nil {
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	result, err := do(e.ID)
	why := ""
	if err != nil {
		why = err.Error()
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), recording)
	defer cancel()
	if failed := r.table.outcome(ending, e.ID, result, why); failed != nil {
		err = errors.Join(err, fmt.Errorf("the outcome could not be recorded in the audit: %w", failed))
	}
	return err
}

// Changed adds to an entry which tasks a batch has changed, in the batch's transaction.
func (r *Recorder) Changed(ctx context.Context, tx sqldb.Conn, id string, tasks []any) error {
	return r.table.changed(ctx, tx, id, tasks)
}
