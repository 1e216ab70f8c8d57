package wire_test

import (
	"errors"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
)

// If a request makes the broker close the connection, other requests on it fail with the broker's reason, but are not
// reported as its cause.
func TestEndingExplains(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		code          int
		text          string
		limited, ends bool // the wanted results for the error from the other request
	}{
		{"limit on channels", amqp.NotAllowed, "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed user limit of (2)", true, false},
		{"internal error", amqp.InternalError, "INTERNAL_ERROR", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := amqptest.Start(t, amqptest.Options{})
			conn, err := srv.Connect()
			if err != nil {
				t.Fatal(err)
			}
			ending := wire.Watch(conn)
			culprit, bystander := open(t, conn), open(t, conn)
			srv.RefuseMethod("queue.declare", "culprit", c.code, c.text)
			if err := declare(culprit, "culprit"); err == nil {
				t.Fatal("declare culprit: got nil, want an error")
			}
			raw := declare(bystander, "bystander")
			if !errors.Is(raw, amqp.ErrClosed) {
				t.Fatalf("declare on the closed connection: got %v, want amqp.ErrClosed", raw)
			}
			got := ending.Explain(raw)
			if !strings.Contains(got.Error(), c.text) {
				t.Errorf("Explain: got %v, want an error with %q", got, c.text)
			}
			if limited := channels.Limited(got); limited != c.limited {
				t.Errorf("Limited(%v) = %t, want %t", got, limited, c.limited)
			}
			if ends := wire.EndsConnection(got); ends != c.ends {
				t.Errorf("EndsConnection(%v) = %t, want %t", got, ends, c.ends)
			}
		})
	}
}

// While the connection is open, Explain returns errors unchanged, because ErrClosed then refers to the channel.
func TestEndingExplainsNothing(t *testing.T) {
	t.Parallel()
	conn, err := amqptest.Start(t, amqptest.Options{}).Connect()
	if err != nil {
		t.Fatal(err)
	}
	ending := wire.Watch(conn)
	for _, want := range []error{nil, amqp.ErrClosed, errors.New("another")} {
		if got := ending.Explain(want); got != want { //nolint:errorlint // it must be the same error
			t.Errorf("Explain(%v) = %v, want the unchanged error", want, got)
		}
	}
}

func open(t *testing.T, conn *amqp.Connection) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func declare(ch *amqp.Channel, queue string) error {
	_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
	return err
}
