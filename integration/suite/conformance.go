package suite

import (
	"context"
	"errors"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The conformance matrix has every strategy on every queue type on every available release line. It also includes
// amqptest, in order to verify that amqptest behaves like a broker. A broker's release line that is not listed here,
// such as that of AMQP_URL, is an additional column.
var (
	ConformanceStrategies = []string{"ttl", "bucket clock", "bucket hex", "plugin", "native", "nservicebus", "celery"}
	ConformanceTypes      = []topology.QueueType{topology.Classic, topology.Quorum}
	ConformanceLines      = []string{"3.10", "4.0", "4.3"}
)

// Memory is the name of the column for amqptest.
const Memory = "memory"

// InstantsIgnored returns why the broker cannot delay by a delivery time, or "" if it can.
func InstantsIgnored(t *testing.T, b *broker.Broker) string {
	probe := func() error {
		return live.ProbeInstants(t.Context(), "cf-probe", func(context.Context) (*amqp.Connection, error) { return amqp.Dial(b.URL()) })
	}
	err := probe()
	for range 5 { // a busy broker may not answer in time
		if err == nil || errors.Is(err, live.ErrInstantsIgnored) {
			break
		}
		err = probe()
	}
	switch {
	case err == nil:
		return ""
	case !errors.Is(err, live.ErrInstantsIgnored):
		t.Fatal(err)
	}
	return "RabbitMQ " + b.Version() + " does not delay messages until a given time; set " + broker.EnvNextImage + " to an image of one that does"
}
