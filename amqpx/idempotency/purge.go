package idempotency

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// Retention is how long records are kept. A repetition that comes later is not
// recognised any more, so Keep must be longer than a message can wait in the
// broker after its first delivery: consumer outages, retries, dead letters that
// are put back by hand.
type Retention struct {
	Keep  time.Duration // age at which a record may be deleted; default 7 days
	Every time.Duration // pause between two purges; default 10 minutes
	Batch int           // rows deleted by one statement; default 1000
}

// WithDefaults fills in what is zero.
func (r Retention) WithDefaults() Retention {
	if r.Keep == 0 {
		r.Keep = 7 * 24 * time.Hour
	}
	if r.Every == 0 {
		r.Every = 10 * time.Minute
	}
	if r.Batch == 0 {
		r.Batch = 1000
	}
	return r
}

// Validate checks the bounds.
func (r Retention) Validate() error {
	switch {
	case r.Keep < 0:
		return fmt.Errorf("retention.keep: %v, expected a positive duration", r.Keep)
	case r.Every < 0:
		return fmt.Errorf("retention.every: %v, expected a positive duration", r.Every)
	case r.Batch < 0 || r.Batch > sqldb.MaxPurge:
		return fmt.Errorf("retention.batch: %d, expected 1 to %d", r.Batch, sqldb.MaxPurge)
	}
	return nil
}

// Purge deletes the records that are older than olderThan and returns how many.
// It deletes batch rows at a time, each batch in a statement and transaction of
// its own, found by an index, so that it holds no lock for long. An error comes
// with the number deleted before it.
func Purge(ctx context.Context, db Database, olderThan time.Duration, batch int) (int64, error) {
	before := time.Now().Add(-olderThan).UnixMilli()
	return sqldb.Purge(ctx, sqldb.Of(db), "", sqldb.Expired{
		Table: "rabbitdelay_processed", Key: "scope, message_id",
		Where: "processed_at < ?", Args: []any{before}, Order: "processed_at",
	}, batch)
}

// RunPurge purges now and then every r.Every until ctx ends, and returns nil
// then. It returns an error at once only for an r that is not valid; the errors
// of a purge go to report, which may be nil, and the next purge tries again.
// Several processes may run it.
func RunPurge(ctx context.Context, db Database, r Retention, report func(deleted int64, err error)) error {
	if err := r.Validate(); err != nil {
		return err
	}
	r = r.WithDefaults()
	ticker := time.NewTicker(r.Every)
	defer ticker.Stop()
	for {
		n, err := Purge(ctx, db, r.Keep, r.Batch)
		if ctx.Err() != nil {
			return nil
		}
		if report != nil {
			report(n, err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
