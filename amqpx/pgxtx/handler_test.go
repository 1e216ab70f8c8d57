package pgxtx_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/pgxtx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// A handler with a nil function is nil, so that Consume refuses it before it receives a message.
func TestNilFunctionMakesNilHandler(t *testing.T) {
	for name, h := range map[string]amqpx.Handler{
		"amqpx.JSON":              amqpx.JSON[int](nil),
		"schedule.Handler":        schedule.Handler(&sql.DB{}, nil),
		"schedule.LeaseHandler":   schedule.LeaseHandler(&sql.DB{}, nil),
		"idempotency.Handler":     idempotency.Handler(&sql.DB{}, nil),
		"pgxtx.TaskHandler":       pgxtx.TaskHandler(nil, nil),
		"pgxtx.LeaseHandler":      pgxtx.LeaseHandler(nil, nil),
		"pgxtx.IdempotentHandler": pgxtx.IdempotentHandler(nil, nil),
	} {
		if h != nil {
			t.Errorf("%s with a nil function: got a handler that returns %v, want a nil handler", name, h(context.Background(), &amqpx.Delivery{}))
		}
	}
}
