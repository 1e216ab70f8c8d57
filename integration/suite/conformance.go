package suite

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// The matrix: every strategy on every queue type on every release line at hand,
// and in memory, so that amqptest does what brokers do. A line that the suite does
// not name but that a broker has, such as that of AMQP_URL, is a column of its own.
var (
	ConformanceStrategies = []string{"ttl", "bucket clock", "bucket hex", "plugin", "native", "nservicebus", "celery"}
	ConformanceTypes      = []topology.QueueType{topology.Classic, topology.Quorum}
	ConformanceLines      = []string{"3.10", "4.0", "4.3"}
)

// Memory is the column of amqptest.
const Memory = "memory"

// InstantsIgnored returns why the broker cannot delay by an instant; "" if it can.
func InstantsIgnored(t *testing.T, b *broker.Broker) string {
	err := live.ProbeInstants(t.Context(), "cf-probe", func(context.Context) (*amqp.Connection, error) { return amqp.Dial(b.URL()) })
	switch {
	case err == nil:
		return ""
	case !errors.Is(err, live.ErrInstantsIgnored):
		t.Fatal(err)
	}
	return "RabbitMQ " + b.Version() + " does not delay by an instant; " + broker.EnvNextImage + " names an image of one that does"
}
