package operations_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// notOnARealBroker lists the scripts that work only on the in-memory broker, with the feature that they need.
var notOnARealBroker = map[string]string{
	"bridge_refuses": "the plugin's exchange type",
	"discard":        "the number of returned messages",
	"peek_json":      "headers with numbers that are not finite, which RabbitMQ refuses",
	"revive_nothing": "a count of the connections",
}

// The scripts print the same output on a real broker as on the in-memory broker.
func TestScriptsOnARealBroker(t *testing.T) {
	program, err := binary.Command(t.Context())
	suite.MustSucceed(t, err)
	b := broker.Shared(t, broker.Options{})
	open := func(amqptest.Options) (clitest.Host, error) { return vhostHost{suite.NewVhost(t, b)}, nil }
	var scripts []string
	for _, commands := range []string{"layout", "messages", "plugin", "tasks"} {
		found, err := filepath.Glob("../" + commands + "/testdata/script/*.txtar")
		suite.MustSucceed(t, err)
		scripts = append(scripts, found...)
	}
	scripts = slices.DeleteFunc(scripts, func(path string) bool {
		if notOnARealBroker[strings.TrimSuffix(filepath.Base(path), ".txtar")] != "" {
			return true
		}
		text, err := os.ReadFile(path)
		suite.MustSucceed(t, err)
		return !strings.Contains(string(text), "\nbroker\n")
	})
	clitest.ScriptsOn(t, program.Path, open, tier.Part(scripts, 3)...)
}

// vhostHost is a virtual host on a real broker as a clitest.Host.
type vhostHost struct{ v *suite.Vhost }

func (h vhostHost) URL() string                        { return h.v.URL }
func (h vhostHost) Connect() (*amqp.Connection, error) { return amqp.Dial(h.v.URL) }
func (h vhostHost) Close()                             {} // the virtual host is deleted when the test ends

func (h vhostHost) Scrub(text string) string {
	return strings.NewReplacer("RabbitMQ "+h.v.Broker.Version(), "RabbitMQ "+amqptest.DefaultVersion, h.v.Name, "/").Replace(text)
}

func (h vhostHost) Queues() ([]string, error) {
	state, err := h.v.Mgmt.Inspect(context.Background(), topology.Topology{})
	names := make([]string, 0, len(state.Queues))
	for name := range state.Queues {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, err
}

func (h vhostHost) Describe(queue string) (string, error) {
	conn, err := h.Connect()
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	counts, err := live.Counts(context.Background(), conn, []string{queue})
	count, asked := counts[queue]
	switch {
	case err != nil:
		return "", err
	case !asked || count.Unavailable != "":
		return "", errors.New("queue " + queue + ": the broker returned no count: " + count.Unavailable)
	case count.Missing:
		return queue + " does not exist", nil
	}
	return fmt.Sprintf("%s %d ready", queue, count.Ready), nil
}
