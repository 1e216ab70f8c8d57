package amqpx_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Objects that are deleted while a client is running are declared again: a delay queue when the broker returns a
// message, and a destination when it is next checked.
func TestDeletedObjectsAreDeclaredAgain(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		c.mustSend(amqpx.Message{ID: "0", Queue: "q", Delay: time.Minute})
		m.Delete("delay.bucket.1m")
		c.mustSend(amqpx.Message{ID: "1", Queue: "q", Delay: time.Minute})
		m.Holds("delay.bucket.1m", 1, 0)
		m.Delete("q")
		after(2 * time.Minute) // more than Config.RecheckInterval, so that the next send checks the destination again
		c.mustSend(amqpx.Message{ID: "2", Queue: "q", Delay: time.Minute})
		after(2 * time.Minute)
		if ids := m.IDs("q"); !slices.Equal(ids, []string{"2"}) {
			t.Errorf(`the destination holds %q, want ["2"]`, ids)
		}
		m.Holds("delay.parked", 1, 0) // the message that no queue received
	})
}

// A deleted delivery exchange is declared again if a destination cannot be declared without it.
func TestDeliveryExchangeThatWasDeleted(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{})
		if err := m.Channel().ExchangeDelete("delay.deliver", false, false); err != nil {
			t.Fatal(err)
		}
		c.mustSend(amqpx.Message{Queue: "q", Delay: 3 * time.Second})
		after(4 * time.Second)
		m.Holds("q", 1, 0)
	})
}

// If the connection is lost while everything is declared again, the message is sent on the next connection.
func TestRedeclareOnLostConnection(t *testing.T) {
	for _, n := range []int{1, 3} {
		inMemory(t, func(t *testing.T, m *memory) {
			c := m.open(amqpx.Config{})
			msg := amqpx.Message{Queue: "q", Delay: time.Minute}
			c.mustSend(msg)
			m.Delete("delay.bucket.1m")
			m.CutAt("exchange.declare", n)
			if err := c.Send(t.Context(), msg); err != nil {
				t.Errorf("Send, with the connection cut at declaration %d: got %v, want no error", n, err)
			}
		})
	}
}

// A client has a separate connection for declarations, which is open only while it is used.
func TestDeclareConnection(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		c := m.open(amqpx.Config{ConnectionName: "shop"})
		if got := len(m.Connections()); got != 1 {
			t.Errorf("after Open, the client has %d connections, want 1", got)
		}
		for i := range 20 {
			c.mustSend(amqpx.Message{Queue: fmt.Sprint("q", i)})
		}
		if got := m.connections(""); !slices.Equal(got, []string{"shop publish", "shop declare"}) {
			t.Errorf(`the client has the connections %q, want ["shop publish" "shop declare"]`, got)
		}
		after(61 * time.Second)
		if got := m.connections(""); !slices.Equal(got, []string{"shop publish"}) {
			t.Errorf(`after a minute, the client has the connections %q, want ["shop publish"]`, got)
		}
		undo := m.RefuseConnections()
		sent := c.sending(amqpx.Message{Queue: "waits"})
		after(10 * time.Second)
		undo()
		if err := <-sent; err != nil {
			t.Errorf("Send that waits for a connection: got %v, want no error", err)
		}
		after(61 * time.Second)
		// The broker refuses the connection, for instance because of a limit on connections or a changed password.
		m.RefuseLogins()
		if err := c.Send(t.Context(), amqpx.Message{Queue: "late"}); err != nil {
			t.Errorf("Send without a connection for declarations: got %v, want no error", err)
		}
	})
}

// guest is a broker user with all permissions.
var guest = amqptest.User{Name: "guest", Password: "guest", Configure: ".*", Write: ".*", Read: ".*"}

// A client that is not allowed to declare uses existing objects, and reports missing ones.
func TestDeclareNothing(t *testing.T) {
	producer := amqptest.User{Name: "producer", Password: "p", Write: ".*", Read: ".*"}
	inMemoryOf(t, amqptest.Options{Version: "4.0.5", Users: []amqptest.User{guest, producer}}, func(t *testing.T, m *memory) {
		m.open(amqpx.Config{}).mustSend(amqpx.Message{Queue: "q"})
		other, err := dlx.NewBucket(dlx.BucketConfig{Prefix: "none"})
		if err != nil {
			t.Fatal(err)
		}
		cfg := amqpx.Config{URL: m.URLAs("producer"), Declare: amqpx.DeclareNothing, Strategy: other}
		if _, err := m.tryOpen(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "none.") {
			t.Errorf(`Open without any topology: got %v, want an error that contains "none."`, err)
		}
		cfg.Strategy = nil
		p := m.open(cfg)
		before := len(m.Queues()) + len(m.Exchanges())
		p.mustSend(amqpx.Message{Queue: "q", Delay: time.Hour})
		for what, msg := range map[string]amqpx.Message{"a queue": {Queue: "missing"}, "an exchange": {Exchange: "missing", RoutingKey: "k"}} {
			if err := p.Send(t.Context(), msg); !errors.Is(err, topology.ErrDestination) {
				t.Errorf("%s that does not exist: got %v, want ErrDestination", what, err)
			}
		}
		if _, ok := m.Queue("missing"); ok || len(m.Queues())+len(m.Exchanges()) != before {
			t.Errorf("after the sends, the broker has the queues %q and %d exchanges, want %d objects as before", m.Queues(), len(m.Exchanges()), before)
		}
		after(time.Hour)
		m.Holds("q", 2, 0)
	})
}

// A client that is not allowed to declare does not send to a queue that might not be bound.
func TestDeclareNothingToUnboundQueue(t *testing.T) {
	blind := amqptest.User{Name: "blind", Password: "p", Write: `^(delay\.(bucket\.[0-9][^.]*|deliver|route\..*)|q)$`}
	producer := blind
	producer.Name, producer.Read = "producer", `^delay\.deliver$`
	inMemoryOf(t, amqptest.Options{Users: []amqptest.User{guest, producer, blind}}, func(t *testing.T, m *memory) {
		m.open(amqpx.Config{})
		m.Declare("q", nil)
		c := m.open(amqpx.Config{URL: m.URLAs("blind"), Declare: amqpx.DeclareNothing})
		err := c.Send(t.Context(), amqpx.Message{Queue: "q"})
		if _, ok := errors.AsType[*topology.DestinationError](err); !ok {
			t.Errorf("Send without permission to bind: got %v, want a DestinationError", err)
		}
		for _, want := range []string{"permission to read from the exchange delay.deliver", "rabbitdelay apply"} {
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("Send without permission to bind: got %v, want an error with %q", err, want)
			}
		}
		c = m.open(amqpx.Config{URL: m.URLAs("producer"), Declare: amqpx.DeclareNothing})
		if err := c.Send(t.Context(), amqpx.Message{ID: "1", Queue: "q"}); err != nil {
			t.Errorf("Send with the permission to bind: got %v, want no error", err)
		}
		if err := c.Send(t.Context(), amqpx.Message{Queue: "other"}); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("Send to a queue without any permission: got %v, want ErrDestination", err)
		}
		m.Holds("q", 1, 0)
		m.Holds("delay.parked", 0, 0)
	})
}

// A missing permission is reported once rather than for each object of a layout.
func TestOneMissingPermission(t *testing.T) {
	inMemory(t, func(t *testing.T, m *memory) {
		defer m.Deny("", amqptest.PermissionConfigure, `^delay\.`)()
		_, err := amqpx.Open(m.within(time.Minute), amqpx.Config{URL: m.URL(), Dial: m.Dial})
		text := fmt.Sprint(err)
		if !strings.Contains(text, "configure access to exchange 'delay.") || !strings.Contains(text, "configure this one to declare nothing") {
			t.Errorf("Open: got %.2000s, want an error with the refused configure access and the advice to declare nothing", text)
		}
		// If the client library sends another operation after the first refusal, the broker may close the connection,
		// and the error names only one object. Otherwise the error contains the number of other objects.
		if n := strings.Count(text, "ACCESS_REFUSED"); n != 1 || len(text) > 4096 {
			t.Errorf("the error of Open: got %d refused objects in %d bytes, want 1 in at most 4096: %.2000s", n, len(text), text)
		}
	})
}
