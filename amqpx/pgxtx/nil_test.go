package pgxtx_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A nil pool, such as the one that pgxpool.New returns with an error, results in an error, not in a panic. A panic in a
// goroutine of the relay would stop the process.
func TestNilPool(t *testing.T) {
	_, newErr := pgxtx.New(nil, nil, schedule.Config{})
	_, purgeErr := pgxtx.Purge(t.Context(), nil, time.Hour, 1)
	for name, err := range map[string]error{
		"New": newErr, "Purge": purgeErr,
		"Migrate":  pgxtx.Migrate(t.Context(), nil),
		"RunPurge": pgxtx.RunPurge(t.Context(), nil, idempotency.Retention{}, nil),
	} {
		if !errors.Is(err, schedule.ErrNoDatabase) {
			t.Errorf("%s: got %v, want ErrNoDatabase", name, err)
		}
	}
	if pgxtx.TaskHandler(nil, nil) != nil {
		t.Error("TaskHandler with a nil pool: got a handler, want nil")
	}
	if err := pgxtx.Listener(nil).Listen(t.Context(), func() {}); err == nil {
		t.Error("a listener with a nil pool returned nil, want an error")
	}
}
