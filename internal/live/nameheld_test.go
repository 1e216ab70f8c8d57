package live_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// If a queue cannot be declared because a process that should not exist is registered under its name, the broker closes
// the connection. The error names the queue and says where the remedy is documented.
func TestApplyNamesTheQueueWhoseNameIsHeld(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5"})
	defer srv.Close()
	srv.Refuse("orders", amqp.InternalError,
		"Cannot declare quorum queue 'orders' in vhost '/' on node 'rabbit@a' with leader on node 'rabbit@a': cluster_not_formed")
	conn, err := srv.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	want := topology.Topology{Queues: []topology.Queue{{Name: "other"}, {Name: "orders"}}}
	_, err = (live.Broker{Conn: conn}).Apply(t.Context(), want, live.ApplyOptions{})
	if err == nil || !strings.Contains(err.Error(), `declare queue "orders"`) || !strings.Contains(err.Error(), "docs/operations.md") {
		t.Errorf(`Apply: got %v, want an error with 'declare queue "orders"' and "docs/operations.md"`, err)
	}
}
