package plugin_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// pluginLines lists the release lines on which the delayed-message plugin is tested.
var pluginLines = []string{"3.10", "4.0"}

// onPlugins runs a test on brokers with the delayed-message plugin, if its file is available.
func onPlugins(t *testing.T, test func(t *testing.T, v *suite.Vhost)) {
	t.Helper()
	for _, line := range pluginLines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			if path, reason := broker.PluginAvailable(line); path == "" {
				t.Skip("skipped: " + reason)
			}
			b := broker.Shared(t, broker.Options{Version: line, Management: true, Plugin: true})
			if b.ManagementURL() == "" {
				t.Skipf("skipped: the broker at AMQP_URL is used without its management API; set %s", broker.EnvManagementURL)
			}
			test(t, suite.NewVhost(t, b))
		})
	}
}

// delays declares an x-delayed-message exchange with a queue of the same name bound
// to it.
func delays(t *testing.T, v *suite.Vhost, exchange, kind, key string) {
	t.Helper()
	ch := v.Channel(t)
	if err := ch.ExchangeDeclare(exchange, "x-delayed-message", true, false, false, false, amqp.Table{"x-delayed-type": kind}); err != nil {
		t.Fatal(err)
	}
	suite.Makes(t, v, exchange, suite.QuorumQueue)
	if err := ch.QueueBind(exchange, key, exchange, false, nil); err != nil {
		t.Fatal(err)
	}
}

// delayed publishes messages, and returns once they are waiting in the plugin.
func delayed(t *testing.T, ch *amqp.Channel, exchange, key string, by time.Duration, list ...amqp.Publishing) {
	t.Helper()
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		headers := amqp.Table{"x-delay": by.Milliseconds()}
		maps.Copy(headers, p.Headers)
		p.Headers = headers
		c, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, p)
		if err != nil || !c.Wait() {
			t.Fatalf("publishing to exchange %s with the key %s: got error %v, want nil and a confirm", exchange, key, err)
		}
	}
}

// plugin status shows waiting messages, their destinations, publishers and obstacles to a migration. Its exit code is 0
// even if there are none.
func TestPluginStatus(t *testing.T) {
	t.Parallel()
	onPlugins(t, func(t *testing.T, v *suite.Vhost) {
		command := suite.CommandOn(t, v, "")
		if r := command("plugin", "status"); r.Code != 0 || !strings.Contains(r.Stdout, "has no x-delayed-message exchange") {
			t.Errorf("plugin status without an exchange: got %s, want exit code 0 and Stdout containing \"has no x-delayed-message exchange\"", r)
		}
		delays(t, v, "orders", "topic", "order.#")
		ch := v.Channel(t)
		delayed(t, ch, "orders", "order.expire", time.Hour, amqp.Publishing{}, amqp.Publishing{}, amqp.Publishing{})
		type status struct {
			Exchanges []struct {
				Name    string
				Waiting *int64
			}
			Publishers []struct{ User, Connection string }
			InTheWay   []string `json:"in_the_way"`
		}
		var s status
		var r suite.Ran
		for deadline := time.Now().Add(suite.Patience); time.Now().Before(deadline); <-time.After(time.Second) {
			r, s = command("plugin", "status", "--json"), status{}
			if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
				t.Fatalf("the status is not JSON: %v: %s", err, r)
			}
			if len(s.Publishers) == 1 {
				break // the management API updates its statistics every 5 s
			}
		}
		if len(s.Exchanges) != 1 || s.Exchanges[0].Waiting == nil || *s.Exchanges[0].Waiting != 3 || len(s.Publishers) != 1 || len(s.InTheWay) != 2 || r.Code != 0 {
			t.Fatalf("plugin status: got %v, want exit code 0, one exchange with 3 waiting messages, 1 publisher and 2 obstacles", r)
		}
		if r := command("plugin", "status"); r.Code != 0 || !strings.Contains(r.Stdout, "3 messages") || !strings.Contains(r.Stdout, "queue orders with order.#") {
			t.Errorf(`plugin status: got %v, want exit code 0, "3 messages" in the output and "queue orders with order.#" in the output`, r)
		}
	})
}
