package drain

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
)

// Lock waits only as long as the broker may take to notice that the lock holder's process has exited.
func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := amqptest.NewServer(amqptest.Options{})
		defer srv.Close()
		connect := func() *amqp.Connection {
			conn, err := srv.Connect()
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		first, second := connect(), connect()
		defer func() { _ = second.Close() }()
		if err := Lock(t.Context(), first, "delay"); err != nil {
			t.Fatal(err)
		}
		if err := Lock(t.Context(), second, "delay"); !errors.Is(err, ErrLocked) {
			t.Errorf("a second lock: got error %v, want ErrLocked", err)
		}
		time.AfterFunc(3*time.Second, func() { _ = first.Close() })
		if err := Lock(t.Context(), second, "delay"); err != nil {
			t.Errorf("a second lock after the first connection was closed: got error %v, want nil", err)
		}
	})
}
