package operations_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// documentedPermissions returns the configure, write and read patterns in docs/permissions.md by user.
func documentedPermissions(t *testing.T) map[string][3]string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][3]string{}
	for _, line := range regexp.MustCompile(`(?m)^rabbitmqctl set_permissions .*$`).FindAllString(string(page), -1) {
		words := suite.ShellWords(line)
		out[words[4]] = [3]string(words[5:8])
	}
	for _, user := range []string{
		"shop-bootstrapper", "shop-producer", "shop-consumer", "shop-service", "shop-narrow", "shop-doctor", "shop-operator",
		"shop-native-producer", "shop-native-consumer", "shop-native-narrow",
	} {
		if _, ok := out[user]; !ok {
			t.Fatalf("docs/permissions.md contains no permissions for user %s, want some", user)
		}
	}
	return out
}

// documentedTopicPermissions returns the write and read patterns of a user's topic permissions in docs/permissions.md
// by exchange.
func documentedTopicPermissions(t *testing.T, user string) map[string][2]string {
	t.Helper()
	page, err := os.ReadFile("../../../../docs/permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][2]string{}
	for _, line := range regexp.MustCompile(`(?m)^rabbitmqctl set_topic_permissions .*$`).FindAllString(string(page), -1) {
		if words := suite.ShellWords(line); words[4] == user {
			out[words[5]] = [2]string(words[6:8])
		}
	}
	if len(out) == 0 {
		t.Fatalf("docs/permissions.md contains no topic permissions for user %s, want some", user)
	}
	return out
}

// shop is the application from the example in docs/permissions.md.
type shop struct {
	*suite.Vhost
	strategy amqpx.Strategy
	want     topology.Topology
	docs     map[string][3]string
}

var (
	toQueue  = topology.Destination{Queue: "orders.expire"}
	toEvents = topology.Destination{Name: "events", Exchange: "events", RoutingKey: "order.expired"}
)

const declaredDelay = 300 * time.Millisecond

func newShop(t *testing.T, v *suite.Vhost) *shop {
	t.Helper()
	return newShopWith(t, v, false)
}

func newShopWith(t *testing.T, v *suite.Vhost, topicPermissions bool) *shop {
	t.Helper()
	bucket, err := dlx.NewBucket(dlx.BucketConfig{TopicPermissions: topicPermissions})
	if err != nil {
		t.Fatal(err)
	}
	ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{declaredDelay}, TopicPermissions: topicPermissions})
	if err != nil {
		t.Fatal(err)
	}
	chosen, err := amqpx.NewAuto(amqpx.AutoConfig{Bucket: bucket, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	s := &shop{Vhost: v, strategy: chosen, docs: documentedPermissions(t)}
	own := topology.Topology{Destinations: []topology.Destination{toQueue, toEvents}}.WithDestinationQueues("delay", topology.Quorum)
	for _, d := range own.Destinations {
		own.Bindings = append(own.Bindings, chosen.Bindings(d)...)
	}
	if s.want, err = chosen.Topology().Merge(own); err != nil {
		t.Fatal(err)
	}
	// The exchange and the queues belong to other applications.
	ch := s.Channel(t)
	if err := ch.ExchangeDeclare("events", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"listener", "orders.other"} {
		if _, err := ch.QueueDeclare(q, true, false, false, false, nil); err != nil {
			t.Fatalf("queue %s: %v", q, err)
		}
	}
	if err := ch.QueueBind("listener", "order.#", "events", false, nil); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shop) client(t *testing.T, brokerURL string, declare amqpx.Declaration) *amqpx.Client {
	t.Helper()
	return suite.OpenClient(t, amqpx.Config{URL: brokerURL, Strategy: s.strategy, Declare: declare})
}

// arrives waits for a message in a queue and receives it as an administrator.
func (s *shop) arrives(t *testing.T, queue, id string) amqp.Delivery {
	t.Helper()
	ch := s.Channel(t)
	var got amqp.Delivery
	suite.Eventually(t, "message "+id+" is in "+queue, func() bool {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		got = d
		return ok && d.MessageId == id
	})
	return got
}

// refuses fails the test unless the broker refuses each action. Each one runs on a new channel.
func refuses(t *testing.T, brokerURL string, tries map[string]func(ch *amqp.Channel) error) {
	t.Helper()
	conn, err := amqp.Dial(brokerURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for what, try := range tries {
		ch, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		err = try(ch)
		if err == nil { // the broker replies to a publish only by closing the channel
			select {
			case e := <-closed:
				err = e
			case <-time.After(suite.Patience):
			}
		}
		if e, ok := errors.AsType[*amqp.Error](err); !ok || e == nil || e.Code != amqp.AccessRefused {
			t.Errorf("action %q: got error %v, want an *amqp.Error with amqp.AccessRefused", what, err)
		}
		_ = ch.Close() // the broker has closed it
	}
}

// The following functions return actions for refuses.
func declares(queue string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		return err
	}
}

func declaresExchange(name string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error { return ch.ExchangeDeclare(name, "topic", true, false, false, false, nil) }
}

func gets(queue string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, _, err := ch.Get(queue, true)
		return err
	}
}

func publishes(exchange, key string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		return ch.PublishWithContext(context.Background(), exchange, key, false, false, amqp.Publishing{})
	}
}

func purges(queue string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueuePurge(queue, false)
		return err
	}
}

func deletes(queue string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(queue, false, false, false)
		return err
	}
}

func binds(queue, exchange string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error { return ch.QueueBind(queue, "k", exchange, false, nil) }
}

// lacks returns the permissions that a user lacks for a role according to the doctor.
func (s *shop) lacks(t *testing.T, brokerURL string, role doctor.Role) []string {
	t.Helper()
	snap, err := snapshot.Take(t.Context(), doctor.Config{Want: s.want, Roles: []doctor.Role{role}}, snapshot.Source{
		Dial: func(context.Context) (*amqp.Connection, error) { return amqp.Dial(brokerURL) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range snap.Denied {
		out = append(out, a.Operation+" "+a.Name)
	}
	slices.Sort(out)
	return out
}

// With the documented permissions, each user can do its work and nothing else.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	suite.OnPrepared(t, func(t *testing.T, v *suite.Vhost) {
		s := newShop(t, v)
		bootstrapper := s.User(t, "shop-bootstrapper", "", s.docs["shop-bootstrapper"])
		producer := s.User(t, "shop-producer", "", s.docs["shop-producer"])
		consumer := s.User(t, "shop-consumer", "", s.docs["shop-consumer"])
		t.Run("bootstrapper", func(t *testing.T) { s.bootstraps(t, bootstrapper) })
		t.Run("producer", func(t *testing.T) { s.produces(t, producer) })
		t.Run("consumer", func(t *testing.T) { s.consumes(t, consumer) })
	})
}

func (s *shop) bootstraps(t *testing.T, brokerURL string) {
	conn, err := amqp.Dial(brokerURL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	b := live.Broker{Conn: conn, Inspector: live.NewAMQPInspector(conn)}
	if _, err := b.Apply(t.Context(), s.want, live.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if p, err := s.Managed().Plan(t.Context(), s.want); err != nil || !p.Empty() {
		t.Errorf("after apply: got %v\n%s\nwant no error and an empty plan", err, p)
	}
	if got := s.lacks(t, brokerURL, doctor.RoleBootstrapper); len(got) > 0 {
		t.Errorf("the doctor reports the missing permissions %v, want none", got)
	}
	refuses(t, brokerURL, map[string]func(*amqp.Channel) error{
		"declare a queue of others":             declares("orders.new"),
		"delete a queue of others":              deletes("orders.other"),
		"read a queue of others":                gets("orders.other"),
		"read the dead letters":                 gets("orders.expire.dead"),
		"declare an exchange of others":         declaresExchange("orders"),
		"redeclare the target exchange":         declaresExchange("events"),
		"publish into an exchange":              publishes("amq.topic", "k"),
		"bind a queue of others":                binds("orders.other", "delay.deliver"),
		"tap the target exchange":               binds("orders.expire", "events"),
		"declare a name that only begins alike": declares("delayed"),
	})
}

func (s *shop) produces(t *testing.T, brokerURL string) {
	c := s.client(t, brokerURL, amqpx.DeclareNothing)
	for id, m := range map[string]amqpx.Message{
		"bucket":   {Queue: toQueue.Queue, Delay: 200 * time.Millisecond},
		"ttl":      {Queue: toQueue.Queue, Delay: declaredDelay},
		"at once":  {Queue: toQueue.Queue},
		"exchange": {Exchange: toEvents.Exchange, RoutingKey: toEvents.RoutingKey, Delay: 100 * time.Millisecond},
	} {
		m.ID = id
		suite.Send(t, c, m)
		queue := toQueue.Queue
		if m.Exchange != "" {
			queue = "listener"
		}
		s.arrives(t, queue, id)
	}
	// With the permission to write to the destination queue, a client notices if the queue does not exist.
	if _, err := s.Channel(t).QueueDelete(toQueue.Queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	again := s.client(t, brokerURL, amqpx.DeclareNothing)
	if err := again.Send(t.Context(), amqpx.Message{Queue: toQueue.Queue, Delay: time.Second}); !errors.Is(err, topology.ErrDestination) {
		t.Errorf("Send to a queue that does not exist: got %v, want ErrDestination", err)
	}
	// A queue that was declared again is bound before a message is sent to it.
	if _, err := s.Channel(t).QueueDeclare(toQueue.Queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	suite.Send(t, s.client(t, brokerURL, amqpx.DeclareNothing), amqpx.Message{ID: "made again", Queue: toQueue.Queue})
	s.arrives(t, toQueue.Queue, "made again")
	if _, err := s.Channel(t).QueueDelete(toQueue.Queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	suite.MustApply(t, s.Vhost.Unmanaged(), s.want)
	if got := s.lacks(t, brokerURL, doctor.RoleProducer); len(got) > 0 {
		t.Errorf("the doctor reports the missing permissions %v, want none", got)
	}
	if got, want := s.lacks(t, brokerURL, doctor.RoleConsumer), []string{"read orders.expire", "write amq.default"}; !slices.Equal(got, want) {
		t.Errorf("the doctor reports that a consumer lacks %v, want %v", got, want)
	}
	got := s.lacks(t, brokerURL, doctor.RoleBootstrapper)
	for _, want := range []string{"configure delay.bucket.32d", "configure orders.expire"} {
		if !slices.Contains(got, want) {
			t.Errorf("the doctor reports that a bootstrapper lacks %v, want %q among them", got, want)
		}
	}
	refuses(t, brokerURL, map[string]func(*amqp.Channel) error{
		"declare a queue":                 declares("orders.new"),
		"declare a delay queue":           declares("delay.bucket.7m30s"),
		"declare an exchange":             declaresExchange("orders"),
		"delete a delay queue":            deletes("delay.bucket.1m"),
		"read its destination":            gets("orders.expire"),
		"read the parked messages":        gets("delay.parked"),
		"purge a delay queue":             purges("delay.bucket.1m"),
		"publish past the delay":          publishes("", "orders.expire"),
		"publish into the target":         publishes("events", "order.expired"),
		"publish into a level":            publishes("delay.bucket.level-0", "k"),
		"publish into the parked":         publishes("delay.parked", "k"),
		"listen to the delivery exchange": binds("orders.other", "delay.deliver"),
	})
}

func (s *shop) consumes(t *testing.T, brokerURL string) {
	c := s.client(t, brokerURL, amqpx.DeclareNothing)
	admin := s.client(t, s.URL, amqpx.DeclareNothing)
	attempts := make(chan int, 10)
	suite.Consume(t, c, toQueue.Queue, func(_ context.Context, d *amqpx.Delivery) error {
		attempts <- d.Attempt
		switch {
		case d.ID == "rejected":
			return amqpx.Reject(errors.New("no"))
		case d.Attempt == 1:
			return errors.New("not yet")
		}
		return nil
	}, amqpx.WithRetry(topology.Retry{MaxAttempts: 3, Backoff: 100 * time.Millisecond}))
	suite.Send(t, admin, amqpx.Message{ID: "retried", Queue: toQueue.Queue})
	for want := 1; want <= 2; want++ {
		if got := <-attempts; got != want {
			t.Fatalf("got attempt %d, want %d", got, want)
		}
	}
	suite.Send(t, admin, amqpx.Message{ID: "rejected", Queue: toQueue.Queue, Delay: 100 * time.Millisecond})
	if d := s.arrives(t, "orders.expire.dead", "rejected"); d.Headers[amqpx.HeaderReason] != inspect.ReasonRejected {
		t.Errorf("dead letter: got the headers %v, want Headers[amqpx.HeaderReason] = inspect.ReasonRejected", d.Headers)
	}
	if got := s.lacks(t, brokerURL, doctor.RoleConsumer); len(got) > 0 {
		t.Errorf("the doctor reports the missing permissions %v, want none", got)
	}
	refuses(t, brokerURL, map[string]func(*amqp.Channel) error{
		"declare a queue":          declares("orders.new"),
		"delete its queue":         deletes("orders.expire"),
		"read a queue of others":   gets("orders.other"),
		"read the dead letters":    gets("orders.expire.dead"),
		"read a delay queue":       gets("delay.bucket.1m"),
		"read the parked messages": gets("delay.parked"),
		"publish into the target":  publishes("events", "order.expired"),
		"publish into a level":     publishes("delay.bucket.level-0", "k"),
		"bind a queue of others":   binds("orders.other", "delay.deliver"),
	})
}

// A service that declares missing objects works with one user on an empty virtual host.
func TestPrivilegesOfServiceThatDeclares(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		s := newShop(t, v)
		service := s.User(t, "shop-service", "", s.docs["shop-service"])
		c := s.client(t, service, amqpx.DeclareMissing)
		handled := make(chan string, 10)
		suite.Consume(t, c, toQueue.Queue, func(_ context.Context, d *amqpx.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("not yet")
			}
			handled <- d.ID
			return nil
		}, amqpx.WithRetry(topology.Retry{Backoff: 100 * time.Millisecond}))
		suite.Send(t, c, amqpx.Message{ID: "1", Queue: toQueue.Queue, Delay: 100 * time.Millisecond})
		if id := <-handled; id != "1" {
			t.Errorf(`handled message %s, want "1"`, id)
		}
		suite.Send(t, c, amqpx.Message{ID: "2", Exchange: toEvents.Exchange, RoutingKey: toEvents.RoutingKey, Delay: 100 * time.Millisecond})
		s.arrives(t, "listener", "2")
		refuses(t, service, map[string]func(*amqp.Channel) error{
			"declare a queue of others": declares("orders.new"),
			"read a queue of others":    gets("orders.other"),
		})
	})
}

// With topic permissions, a producer can send only to its destinations. Producers of a layout without topic permissions
// still use that layout's entry exchanges.
func TestTopicPermissions(t *testing.T) {
	t.Parallel()
	suite.OnSomePrepared(t, func(t *testing.T, v *suite.Vhost) {
		others := newShop(t, v)
		suite.MustApply(t, v.Unmanaged(), others.want)
		s := newShopWith(t, v, true)
		suite.MustApply(t, v.Unmanaged(), s.want)
		producer := s.User(t, "shop-narrow", "", s.docs["shop-narrow"])
		v.PermitTopics(t, producer, documentedTopicPermissions(t, "shop-narrow"))
		if denied, want := s.lacks(t, producer, doctor.RoleProducer), []string{"write delay.route.events:order.expired"}; !slices.Equal(denied, want) {
			t.Errorf("the doctor reports the missing permissions %v, want %v", denied, want)
		}
		c := s.client(t, producer, amqpx.DeclareNothing)
		for id, delay := range map[string]time.Duration{"0": 0, "100": 100 * time.Millisecond, "300": declaredDelay} {
			suite.Send(t, c, amqpx.Message{ID: id, Queue: toQueue.Queue, Delay: delay})
			s.arrives(t, toQueue.Queue, id)
		}
		suite.Send(t, others.client(t, v.URL, amqpx.DeclareNothing), amqpx.Message{ID: "other", Queue: toQueue.Queue, Delay: declaredDelay})
		s.arrives(t, toQueue.Queue, "other")
		refuses(t, producer, map[string]func(*amqp.Channel) error{
			"get copies of what goes to others": func(ch *amqp.Channel) error {
				return ch.QueueBind("orders.expire", "clock.#", "delay.deliver", false, nil)
			},
			"send to another destination":                publishes("delay.bucket", "clock.0.0.0.0.0.1.orders.other"),
			"send there by ttl":                          publishes("delay.ttl", "ttl.300ms.orders.other"),
			"send there without a delay":                 publishes("delay.deliver", "clock.0.0.0.0.0.0.orders.other"),
			"send to one that ends alike":                publishes("delay.bucket", "clock.0.0.0.0.0.1.eu.orders.expire"),
			"send to one that ends alike, with a digit":  publishes("delay.bucket", "clock.0.0.0.0.0.1.1.orders.expire"),
			"send there by ttl, ending alike":            publishes("delay.ttl", "ttl.300ms.eu.orders.expire"),
			"send there without a delay, ending alike":   publishes("delay.deliver", "clock.0.0.0.0.0.0.eu.orders.expire"),
			"send there by another layout's tag":         publishes("delay.deliver", "ttl.0.0.0.0.0.0.orders.expire"),
			"send by the way in that is not checked":     publishes("delay.bucket.100ms", "clock.0.0.0.0.0.1.orders.expire"),
			"send by ttl by the way that is not checked": publishes("delay.ttl.300ms", "ttl.300ms.orders.expire"),
		})
	})
}

// The doctor's management user needs no other permissions to read everything.
func TestDoctorPrivileges(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		c := newClinic(t, v, []int{2}, toQueue)
		suite.MustApply(t, v.Unmanaged(), c.cfg.Want)
		u, err := url.Parse(v.User(t, "shop-doctor", "monitoring", documentedPermissions(t)["shop-doctor"]))
		if err != nil {
			t.Fatal(err)
		}
		password, _ := u.User.Password()
		c.src.Management, err = live.NewManagement(live.ManagementConfig{URL: v.Mgmt.Endpoint(), Username: u.User.Username(), Password: password, Vhost: v.Name})
		if err != nil {
			t.Fatal(err)
		}
		r := c.examine(t)
		notes := strings.Join(r.Notes, "\n")
		if !r.Clean() || r.Source != "management API" || strings.Contains(notes, "polic") || strings.Contains(notes, "nodes") || strings.Contains(notes, "alarms") {
			t.Errorf("got\n%s\nwant a clean report from the management API that does not mention \"polic\", \"nodes\" or \"alarms\"",
				render(r))
		}
	})
}

// The operator can peek at dead letters and requeue them, and can do nothing else.
func TestOperatorsRights(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		operator := v.User(t, "shop-operator", "monitoring", documentedPermissions(t)["shop-operator"])
		suite.Makes(t, v, "orders.expire", suite.QuorumQueue)
		suite.Buries(t, v, "orders.expire.dead", "orders.expire", 5, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": topology.NoDeliveryLimit})
		u, err := url.Parse(operator)
		suite.MustSucceed(t, err)
		m, err := url.Parse(v.Mgmt.Endpoint())
		suite.MustSucceed(t, err)
		m.User = u.User
		file := filepath.Join(t.TempDir(), "shop.yaml")
		suite.MustSucceed(t, os.WriteFile(file,
			fmt.Appendf(nil, "broker: {url: %q, management_url: %q}\ndestinations: [{queue: orders.expire}]\n", operator, m),
			0o600))
		do := func(args ...string) suite.Ran { return suite.RunCLI(t.Context(), append(args, "-f", file)...) }
		suite.Known(t, v, "orders.expire.dead")
		if r := do("peek", "--queue", "orders.expire.dead"); r.Code != 0 || !strings.Contains(r.Stdout, "5. orders.expire-0004") {
			t.Errorf(`peek: got %s, want exit code 0 and Stdout with "5. orders.expire-0004"`, r)
		}
		suite.Eventually(t, "status counts the dead letters", func() bool { // the management API's counts are up to 5 s old
			return strings.Contains(do("status", "--peek", "0").Stdout, "orders.expire.dead: 5")
		})
		if r := do("requeue", "--queue", "orders.expire.dead", "--yes"); r.Code != 0 || !strings.Contains(r.Stdout, "5 sent to orders.expire") {
			t.Errorf(`requeue: got %s, want exit code 0 and Stdout with "5 sent to orders.expire"`, r)
		}
		for _, denied := range [][]string{{"apply"}, {"peek", "--queue", "orders.expire"}, {"destroy", "--yes", "--destinations"}} {
			if r := do(denied...); r.Code != 1 {
				t.Errorf("%v: got %s, want exit code 1", denied, r)
			}
		}
		if got := suite.Drains(t, v, "orders.expire"); len(got) != 5 {
			t.Errorf("queue orders.expire contains %v, want 5 messages", got)
		}
	})
}
