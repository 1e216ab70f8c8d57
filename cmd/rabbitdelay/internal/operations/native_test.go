package operations_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The native strategy refuses a broker that ignores delivery times, and a holding queue that ignores them although the
// broker supports them. No message is parked, and no canary is left.
func TestCanaryOnBrokers(t *testing.T) {
	t.Parallel()
	lines := suite.ConformanceLines
	if here, err := broker.Versions(t.Context()); err == nil {
		lines = here
	}
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			b := broker.Shared(t, broker.Options{Version: line})
			delays := suite.InstantsIgnored(t, b) == ""
			t.Logf("RabbitMQ %s delays messages until a given time: %t", b.Version(), delays)
			began := time.Now()
			c, err := amqpx.Open(t.Context(), amqpx.Config{URL: b.URL(), Strategy: nativeOf(t, "canary-quorum")})
			switch {
			case delays && err == nil:
				t.Logf("the canary was delivered in time; the check took %v", time.Since(began))
				if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
			case delays || !errors.Is(err, live.ErrInstantsIgnored):
				t.Errorf("after %v: got error %v, want nil from a broker that delays until a given time, and live.ErrInstantsIgnored from others", time.Since(began), err)
			default:
				t.Logf("refused after %v: %v", time.Since(began), err)
			}

			conn, err := amqp.Dial(b.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ch, err := conn.Channel()
			if err != nil {
				t.Fatal(err)
			}
			classic := nativeOf(t, "canary-classic")
			name := classic.Topology().Queues[1].Name
			if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{
				argument.QueueType: "classic", argument.MessageTTL: int64(0), argument.DeadLetterExchange: topology.DeliveryExchange("canary-classic"),
			}); err != nil {
				t.Fatal(err)
			}
			rest := classic.Topology()
			rest.Queues = append(rest.Queues[:1:1], rest.Queues[2:]...)
			if _, err := (live.Broker{Conn: conn}).Apply(t.Context(), rest, live.ApplyOptions{Prefix: "canary-classic"}); err != nil {
				t.Fatal(err)
			}
			if _, err := (live.Broker{Conn: conn}).Prove(t.Context(), "canary-classic", classic.Canary); !errors.Is(err, live.ErrInstantsIgnored) {
				t.Errorf("with the classic queue %s: got %v, want live.ErrInstantsIgnored", name, err)
			}
			for _, prefix := range []string{"canary-quorum", "canary-classic"} {
				q, err := ch.QueueDeclarePassive(topology.ParkedQueue(prefix), true, false, false, false, nil)
				if err != nil || q.Messages > 0 {
					t.Errorf("parked queue of prefix %s: got %+v, error %v, want no error and Messages = 0", prefix, q, err)
				}
			}
		})
	}
}

func nativeOf(t *testing.T, prefix string) *dlx.Native {
	t.Helper()
	s, err := dlx.NewNative(dlx.NativeConfig{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// nativeUsers returns the permissions of the users in docs/permissions.md, and of users that lack one of them each.
func nativeUsers(t *testing.T) map[string][3]string {
	t.Helper()
	docs := documentedPermissions(t)
	p := docs["shop-native-producer"]
	return map[string][3]string{
		"shop-bootstrapper":    docs["shop-bootstrapper"],
		"shop-native-producer": p,
		"shop-native-consumer": docs["shop-native-consumer"],
		"no-configure":         {"^$", p[1], p[2]},
		"no-read":              {p[0], p[1], `^delay\.deliver$`},
		"no-bind":              {p[0], strings.Replace(p[1], `canary\..*|`, "", 1), p[2]},
		"no-queues":            {p[0], strings.Replace(p[1], `native\.[0-9]+|`, "", 1), p[2]},
	}
}

// With the documented permissions for the native strategy, each user can do its work and nothing else. The doctor
// reports exactly the permissions that users lack. The test runs in memory, and on a broker that delays until a given
// time if one is available.
func TestNativeLeastPrivilege(t *testing.T) {
	t.Parallel()
	t.Run(suite.Memory, func(t *testing.T) {
		opts := amqptest.Options{Version: "4.4.0", Users: []amqptest.User{{Name: "guest", Password: "guest", Configure: ".*", Write: ".*", Read: ".*"}}}
		for name, p := range nativeUsers(t) {
			opts.Users = append(opts.Users, amqptest.User{Name: name, Password: "opensesame", Configure: p[0], Write: p[1], Read: p[2]})
		}
		srv := amqptest.NewServer(opts)
		t.Cleanup(srv.Close)
		listening, err := srv.Listen()
		suite.MustSucceed(t, err)
		nativePrivileges(t, listening, func(name string) string {
			u, err := url.Parse(listening)
			suite.MustSucceed(t, err)
			u.User = url.UserPassword(name, "opensesame")
			return u.String()
		})
	})
	t.Run("broker", func(t *testing.T) {
		v := delayingVhost(t)
		urls := map[string]string{}
		for name, p := range nativeUsers(t) {
			urls[name] = v.User(t, name, "", p)
		}
		nativePrivileges(t, v.URL, func(name string) string { return urls[name] })
	})
}

// delayingVhost returns a virtual host on the newest available broker. It skips the test if that broker does not delay
// messages until a given time.
func delayingVhost(t *testing.T) *suite.Vhost {
	t.Helper()
	b := broker.Shared(t, broker.Options{Version: newestLine(t), Management: true})
	if reason := suite.InstantsIgnored(t, b); reason != "" {
		t.Skip("skipped: " + reason)
	}
	if b.ManagementURL() == "" {
		t.Skipf("skipped: the broker at %s is used without its management API; set %s", broker.EnvURL, broker.EnvManagementURL)
	}
	return suite.NewVhost(t, b)
}

// newestLine returns the newest available release line, or an empty string if there is no broker.
func newestLine(t *testing.T) string {
	t.Helper()
	lines, err := broker.Versions(t.Context())
	if err != nil {
		return ""
	}
	return lines[len(lines)-1]
}

// nativePrivileges checks that each user can do its work, and that the broker refuses other actions.
func nativePrivileges(t *testing.T, adminURL string, userURL func(name string) string) {
	strategy := nativeOf(t, topology.DefaultPrefix)
	admin, err := amqp.Dial(adminURL)
	suite.MustSucceed(t, err)
	defer admin.Close()
	ch, err := admin.Channel()
	suite.MustSucceed(t, err)
	for _, q := range []string{"listener", "orders.other"} {
		_, err := ch.QueueDeclare(q, true, false, false, false, amqp.Table{argument.QueueType: "classic"})
		suite.MustSucceed(t, err)
	}
	suite.MustSucceed(t, ch.ExchangeDeclare("events", "topic", true, false, false, false, nil))
	suite.MustSucceed(t, ch.QueueBind("listener", "order.#", "events", false, nil))
	want := topology.Topology{Destinations: []topology.Destination{toQueue, toEvents}}.WithDestinationQueues("delay", topology.Quorum)
	for _, d := range want.Destinations {
		want.Bindings = append(want.Bindings, strategy.Bindings(d)...)
	}
	want, err = strategy.Topology().Merge(want)
	suite.MustSucceed(t, err)
	boots, err := amqp.Dial(userURL("shop-bootstrapper"))
	suite.MustSucceed(t, err)
	defer boots.Close()
	suite.MustApply(t, live.Broker{Conn: boots}, want)

	open := func(url string) (*amqpx.Client, error) {
		ctx, cancel := context.WithTimeout(t.Context(), suite.Patience)
		defer cancel()
		return amqpx.Open(ctx, amqpx.Config{URL: url, Strategy: strategy, Declare: amqpx.DeclareNothing})
	}
	producer, consumer := userURL("shop-native-producer"), userURL("shop-native-consumer")
	c, err := open(producer)
	suite.MustSucceed(t, err)
	defer c.Close(context.Background())
	handled := make(chan string, 10)
	k, err := open(consumer)
	suite.MustSucceed(t, err)
	defer k.Close(context.Background())
	suite.Consume(t, k, toQueue.Queue, func(_ context.Context, d *amqpx.Delivery) error {
		switch {
		case d.ID == "rejected":
			return amqpx.Reject(errors.New("no"))
		case d.Attempt == 1:
			return errors.New("not yet")
		}
		handled <- d.ID
		return nil
	}, amqpx.WithRetry(topology.Retry{MaxAttempts: 3, Backoff: 100 * time.Millisecond}))
	for _, m := range []amqpx.Message{
		{ID: "delayed", Queue: toQueue.Queue, Delay: 100 * time.Millisecond}, {ID: "at once", Queue: toQueue.Queue},
		{ID: "rejected", Queue: toQueue.Queue, Delay: time.Millisecond},
		{ID: "event", Exchange: toEvents.Exchange, RoutingKey: toEvents.RoutingKey, Delay: time.Millisecond},
	} {
		suite.Send(t, c, m)
	}
	for range 2 {
		<-handled
	}
	for queue, id := range map[string]string{"orders.expire.dead": "rejected", "listener": "event"} {
		suite.Eventually(t, "message "+id+" is in "+queue, func() bool {
			d, ok, err := ch.Get(queue, true)
			suite.MustSucceed(t, err)
			return ok && d.MessageId == id
		})
	}
	refuses(t, producer, map[string]func(*amqp.Channel) error{
		"declare a queue":                 declares("orders.new"),
		"declare a holding queue":         declares("delay.native.9"),
		"delete a holding queue":          deletes("delay.native.1"),
		"read a holding queue":            gets("delay.native.1"),
		"read its destination":            gets("orders.expire"),
		"read the parked messages":        gets("delay.parked"),
		"publish past the delay":          publishes("", "orders.expire"),
		"publish into the target":         publishes("events", "order.expired"),
		"listen to the delivery exchange": binds("orders.other", "delay.deliver"),
	})
	refuses(t, consumer, map[string]func(*amqp.Channel) error{
		"declare a queue":        declares("orders.new"),
		"delete a holding queue": deletes("delay.native.1"),
		"read the dead letters":  gets("orders.expire.dead"),
		"read a queue of others": gets("orders.other"),
		"bind a queue of others": binds("orders.other", "delay.deliver"),
	})
	nativeDoctor(t, userURL)
	for name, lacks := range map[string]string{
		"no-configure": "configure delay.canary.doctor", "no-read": "read delay.canary.doctor",
		"no-bind": "write delay.canary.doctor", "no-queues": "write delay.native.1",
	} {
		if _, err := open(userURL(name)); !isRefusal(err) {
			t.Errorf("user %s, who lacks the permission to %s: got error %v, want the broker to refuse access", name, lacks, err)
		}
	}
}

func isRefusal(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.AccessRefused
}

// nativeDoctor checks that the doctor reports the permissions that users lack for their roles. The doctor uses these
// permissions to test whether the broker supports delivery times.
func nativeDoctor(t *testing.T, userURL func(name string) string) {
	for name, c := range map[string]struct{ role, denied string }{
		"shop-bootstrapper":    {"bootstrapper", ""},
		"shop-native-producer": {"producer", ""},
		"shop-native-consumer": {"consumer", ""},
		"no-configure":         {"producer", "permission-configure delay.canary.doctor"},
		"no-read":              {"producer", "permission-read delay.canary.doctor"},
		"no-bind":              {"producer", "permission-write delay.canary.doctor"},
		"no-queues":            {"producer", "permission-write delay.native.1"},
	} {
		file := filepath.Join(t.TempDir(), "shop.yaml")
		suite.MustSucceed(t, os.WriteFile(file, fmt.Appendf(nil,
			"broker: {url: %q}\ndelay: {strategy: native}\ndestinations: [{queue: orders.expire}]\n", userURL(name)), 0o600))
		r := suite.RunCLI(t.Context(), "doctor", "-f", file, "--role", c.role, "--json")
		var report doctor.Report
		if err := json.Unmarshal([]byte(r.Stdout), &report); err != nil {
			t.Fatalf("%s: the report is not JSON: %v: %s", name, err, r)
		}
		var all []string
		for _, f := range report.Findings {
			if strings.HasPrefix(f.ID, "permission-") {
				all = append(all, f.ID+" "+f.Objects[0])
			}
		}
		denied := strings.Join(all, ", ")
		blind := slices.ContainsFunc(report.Unchecked, func(u doctor.Unchecked) bool { return u.Area == doctor.AreaInstants })
		if denied != c.denied || blind != (c.denied != "") {
			t.Errorf("user %s: got the denied permissions %q, delivery times unchecked = %t, unchecked areas %v, want denied permissions %q, and delivery times unchecked only if there are any",
				name, denied, blind, report.Unchecked, c.denied)
		}
	}
}

// With topic permissions, a producer that uses the native strategy can send only to its destinations.
func TestNativeTopicPermissions(t *testing.T) {
	t.Parallel()
	v := delayingVhost(t)
	strategy, err := dlx.NewNative(dlx.NativeConfig{TopicPermissions: true})
	suite.MustSucceed(t, err)
	want := topology.Topology{Destinations: []topology.Destination{toQueue}}.WithDestinationQueues("delay", topology.Quorum)
	want.Bindings = append(want.Bindings, strategy.Bindings(toQueue)...)
	want, err = strategy.Topology().Merge(want)
	suite.MustSucceed(t, err)
	suite.MustApply(t, v.Unmanaged(), want)
	producer := v.User(t, "shop-native-narrow", "", documentedPermissions(t)["shop-native-narrow"])
	v.PermitTopics(t, producer, documentedTopicPermissions(t, "shop-native-narrow"))
	c := suite.OpenClient(t, amqpx.Config{URL: producer, Strategy: strategy, Declare: amqpx.DeclareNothing})
	ch := v.Channel(t)
	for id, delay := range map[string]time.Duration{"0": 0, "100": 100 * time.Millisecond} {
		suite.Send(t, c, amqpx.Message{ID: id, Queue: toQueue.Queue, Delay: delay})
		suite.Eventually(t, "message "+id+" arrives", func() bool {
			d, ok, err := ch.Get(toQueue.Queue, true)
			suite.MustSucceed(t, err)
			return ok && d.MessageId == id
		})
	}
	canary := naming.CanaryQueue("delay") + strings.Repeat("A", 26)
	_, err = ch.QueueDeclare(canary, true, false, false, false, nil)
	suite.MustSucceed(t, err)
	listens := func(key string) func(ch *amqp.Channel) error {
		return func(ch *amqp.Channel) error { return ch.QueueBind(canary, key, "delay.deliver", false, nil) }
	}
	refuses(t, producer, map[string]func(*amqp.Channel) error{
		"get copies of what goes to all":           listens("native.#"),
		"get copies of what goes to others":        listens("native.*.orders.other"),
		"send to another destination":              publishes("delay.native", "native.1.orders.other"),
		"send there without a delay":               publishes("delay.deliver", "native.0.orders.other"),
		"send to one that ends alike":              publishes("delay.native", "native.1.eu.orders.expire"),
		"send to a canary and more":                publishes("delay.native", "native.1.delay.canary."+strings.Repeat("A", 26)+".x"),
		"send past the way in that is not checked": publishes("delay.native.1", "native.1.orders.expire"),
	})
}
