package conformance_test

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// amqptest behaves like each available broker of the same version. It returns the same error texts, and treats messages
// in the same way.
func TestAmqptestAnswersLikeBrokers(t *testing.T) {
	t.Parallel()
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
	here, err := broker.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range here {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			b := broker.Shared(t, broker.Options{Version: line})
			srv := amqptest.NewServer(amqptest.Options{Version: b.Version()})
			t.Cleanup(srv.Close)
			url, err := srv.Listen()
			if err != nil {
				t.Fatal(err)
			}
			heedsConsumers(t, b.URL())
			playAll(t, b.URL(), url)
		})
	}
}

// heedsConsumers waits until the broker refuses to delete a classic queue with a consumer if the flag if-unused is set.
// In the first seconds after their start, RabbitMQ 4.0 and 4.3 delete such a queue.
func heedsConsumers(t *testing.T, url string) {
	t.Helper()
	conn, err := amqp.DialConfig(url, amqp.Config{Heartbeat: heartbeat})
	suite.MustSucceed(t, err)
	defer func() { _ = conn.Close() }()
	began := time.Now()
	suite.Eventually(t, "the broker refuses to delete a queue that has a consumer", func() bool {
		ch, err := conn.Channel()
		suite.MustSucceed(t, err)
		defer func() { _ = ch.Close() }()
		q, err := ch.QueueDeclare("", false, true, true, false, nil)
		suite.MustSucceed(t, err)
		_, err = ch.Consume(q.Name, "", false, false, false, false, nil)
		suite.MustSucceed(t, err)
		_, err = ch.QueueDelete(q.Name, true, false, false)
		return err != nil
	})
	t.Logf("the broker refuses to delete a queue in use after %v", time.Since(began).Round(time.Millisecond))
}

// noLeader is in the answer of a busy broker if a new quorum queue has not elected a leader in time.
const noLeader = "cluster_not_formed"

// tooLate is what a script records if a message expired before the script received it, because the machine is busy.
const tooLate = "expired before it was received"

// playAll runs all scripts on RabbitMQ and on amqptest concurrently, because both mostly wait. If the machine was too
// busy for a script, the script runs again.
func playAll(t *testing.T, url, memory string) {
	t.Helper()
	var running sync.WaitGroup
	for _, k := range append(likeness, fates()...) {
		running.Go(func() {
			var want, got string
			var both sync.WaitGroup
			both.Go(func() { want = playUndisturbed(t, url, k) })
			both.Go(func() { got = playUndisturbed(t, memory, k) })
			both.Wait()
			if got != want {
				t.Errorf("%s: got from amqptest\n%s\nwant as from RabbitMQ\n%s", k.name, got, want)
			}
		})
	}
	running.Wait()
}

func playUndisturbed(t *testing.T, url string, k likenessCase) string {
	t.Helper()
	for try := 1; ; try++ {
		record := play(t, url, k)
		if try == 4 || !strings.Contains(record, noLeader) && !strings.Contains(record, tooLate) {
			return record
		}
	}
}

// player performs a script's operations on a connection and records the answers.
type player struct {
	t      *testing.T
	url    string
	conn   *amqp.Connection
	prefix string
	log    strings.Builder
	clean  []func(ch *amqp.Channel)
}

func play(t *testing.T, url string, k likenessCase) string {
	t.Helper()
	p := &player{t: t, url: url, prefix: "like" + rand.Text()[:8] + "." + strings.ReplaceAll(k.name, " ", "-") + "."}
	p.conn = p.connect()
	defer func() { _ = p.conn.Close() }()
	var script sync.WaitGroup
	script.Go(func() { k.run(p) }) // must may end this goroutine
	script.Wait()
	for _, remove := range p.clean {
		ch := p.channel()
		remove(ch)
		_ = ch.Close()
	}
	return strings.ReplaceAll(p.log.String(), p.prefix, "")
}

func (p *player) connect() *amqp.Connection {
	conn, err := amqp.DialConfig(p.url, amqp.Config{Heartbeat: heartbeat})
	p.must(err)
	return conn
}

// channel opens a channel, after reconnecting if the connection was closed.
func (p *player) channel() *amqp.Channel {
	if p.conn.IsClosed() {
		p.conn = p.connect()
	}
	ch, err := p.conn.Channel()
	p.must(err)
	return ch
}

// must ends the script if an operation fails that the script does not record.
func (p *player) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Errorf("prefix %s: an operation that the script does not record failed: %v", p.prefix, err)
		runtime.Goexit()
	}
}

func (p *player) sayf(format string, args ...any) { fmt.Fprintf(&p.log, format+"\n", args...) }

// try performs an operation on a new channel and records the broker's answer.
func (p *player) try(what string, f func(ch *amqp.Channel) error) {
	ch := p.channel()
	defer func() { _ = ch.Close() }()
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	err := f(ch)
	if err == nil {
		err = ch.Qos(0, 0, false) // its answer arrives after operations without an answer have been processed
		if errors.Is(err, amqp.ErrClosed) {
			err = <-closed
		}
	}
	p.sayf("%s: %s", what, refusal(err))
}

// nodes matches the node names in error texts, which differ between brokers.
var nodes = regexp.MustCompile(`rabbit[\w.-]*@[\w.-]+`)

func refusal(err error) string {
	if err == nil {
		return "ok"
	}
	if ae, ok := err.(*amqp.Error); ok { //nolint:errorlint // amqp091 does not wrap it
		return nodes.ReplaceAllString(fmt.Sprintf("%d %s", ae.Code, ae.Reason), "NODE")
	}
	return err.Error()
}

func (p *player) queue(name string, args amqp.Table) {
	p.clean = append(p.clean, func(ch *amqp.Channel) { _, _ = ch.QueueDelete(p.prefix+name, false, false, false) })
	p.try("declare "+name, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(p.prefix+name, true, false, false, false, args)
		return err
	})
}

func (p *player) exchange(name, kind string, args amqp.Table) {
	p.clean = append(p.clean, func(ch *amqp.Channel) { _ = ch.ExchangeDelete(p.prefix+name, false, false) })
	p.try("declare "+name, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(p.prefix+name, kind, true, false, false, false, args)
	})
}

func (p *player) bind(exchange, queue, key string, args amqp.Table) {
	p.try("bind "+queue, func(ch *amqp.Channel) error { return ch.QueueBind(p.prefix+queue, key, p.prefix+exchange, false, args) })
}

// publish publishes a message and records the confirm and the return.
func (p *player) publish(exchange, key string, m amqp.Publishing) {
	ch := p.channel()
	defer func() { _ = ch.Close() }()
	p.must(ch.Confirm(false))
	returned := ch.NotifyReturn(make(chan amqp.Return, 1))
	if exchange != "" && !strings.HasPrefix(exchange, "amq.") {
		exchange = p.prefix + exchange
	} else if exchange == "" {
		key = p.prefix + key
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	dc, err := ch.PublishWithDeferredConfirm(exchange, key, true, false, m)
	p.must(err)
	outcome := fmt.Sprintf("acked %t", dc.Wait())
	if ch.IsClosed() {
		outcome = refusal(<-closed)
	}
	select {
	case r := <-returned:
		if r.ReplyCode != 0 {
			outcome += fmt.Sprintf(", returned %d %s", r.ReplyCode, r.ReplyText)
		}
	default:
	}
	p.sayf("publish %s: %s", m.Body, outcome)
}

// get waits for a message and records it.
func (p *player) get(ch *amqp.Channel, queue string) amqp.Delivery {
	deadline := time.Now().Add(suite.Patience)
	for {
		d, ok, err := ch.Get(p.prefix+queue, false)
		if err != nil || time.Now().After(deadline) {
			p.t.Errorf("no message arrived in %s within %v: %v", queue, suite.Patience, err)
			return d
		}
		if ok {
			p.sayf("%s: %s", queue, letter(d))
			return d
		}
		<-time.After(20 * time.Millisecond)
	}
}

// holds waits until a queue has n messages.
func (p *player) holds(queue string, n int) {
	p.t.Helper()
	ch := p.channel()
	defer func() { _ = ch.Close() }()
	for deadline := time.Now().Add(suite.Patience); ; {
		q, err := ch.QueueDeclarePassive(p.prefix+queue, true, false, false, false, nil)
		p.must(err)
		if q.Messages == n {
			return
		}
		if time.Now().After(deadline) {
			p.must(fmt.Errorf("queue %s has %d messages, want %d", queue, q.Messages, n))
		}
		<-time.After(5 * time.Millisecond)
	}
}

// empty records the number of messages in a queue that is not expected to change any more.
func (p *player) empty(queue string) {
	p.try("count "+queue, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(p.prefix+queue, true, false, false, false, nil)
		p.sayf("%s holds %d", queue, q.Messages)
		return err
	})
}

// letter describes a message with everything that a broker adds to it, except times.
func letter(d amqp.Delivery) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s from %q by %q, redelivered %t, expiration %q", d.Body, d.Exchange, d.RoutingKey, d.Redelivered, d.Expiration)
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		fmt.Fprintf(&s, "\n  %s: %s", name, value(d.Headers[name]))
	}
	return s.String()
}

func value(v any) string {
	switch v := v.(type) {
	case amqp.Table:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, name+"="+value(v[name]))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, value(x))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case time.Time:
		return "instant"
	}
	return fmt.Sprintf("%T %v", v, v)
}

type likenessCase struct {
	name string
	run  func(p *player)
}

var likeness = []likenessCase{
	{"missing", likeMissing},
	{"inequivalent", likeInequivalent},
	{"names", likeNames},
	{"arguments", likeArguments},
	{"exclusive", likeExclusive},
	{"bindings", likeBindings},
	{"publishing", likePublishing},
	{"channels", likeChannels},
	{"deleting", likeDeleting},
	{"deaths classic", func(p *player) { likeDeaths(p, "classic") }},
	{"deaths quorum", func(p *player) { likeDeaths(p, "quorum") }},
	{"expiry classic", func(p *player) { likeExpiry(p, "classic") }},
	{"expiry quorum", func(p *player) { likeExpiry(p, "quorum") }},
	{"cycle classic", func(p *player) { likeCycle(p, "classic") }},
	{"cycle quorum", func(p *player) { likeCycle(p, "quorum") }},
	{"lengths classic", func(p *player) { likeLengths(p, "classic") }},
	{"lengths quorum", func(p *player) { likeLengths(p, "quorum") }},
	{"requeue classic", func(p *player) { likeRequeue(p, "classic") }},
	{"requeue quorum", func(p *player) { likeRequeue(p, "quorum") }},
	{"priorities classic", func(p *player) { likePriorities(p, amqp.Table{"x-queue-type": "classic", "x-max-priority": 10}) }},
	{"priorities quorum", func(p *player) { likePriorities(p, amqp.Table{"x-queue-type": "quorum"}) }},
	{"headers", likeHeaders},
	{"unroutable", likeUnroutable},
}

func likeMissing(p *player) {
	p.try("queue", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(p.prefix+"none", true, false, false, false, nil)
		return err
	})
	p.try("exchange", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(p.prefix+"none", "topic", true, false, false, false, nil)
	})
	p.try("bind", func(ch *amqp.Channel) error { return ch.QueueBind(p.prefix+"none", "k", "amq.topic", false, nil) })
	p.try("consume", func(ch *amqp.Channel) error {
		_, err := ch.Consume(p.prefix+"none", "", false, false, false, false, nil)
		return err
	})
	p.try("get", func(ch *amqp.Channel) error {
		_, _, err := ch.Get(p.prefix+"none", false)
		return err
	})
	p.try("purge", func(ch *amqp.Channel) error {
		_, err := ch.QueuePurge(p.prefix+"none", false)
		return err
	})
	p.try("delete", func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(p.prefix+"none", false, false, false)
		return err
	})
	p.try("delete exchange", func(ch *amqp.Channel) error { return ch.ExchangeDelete(p.prefix+"none", false, false) })
	p.try("kind", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(p.prefix+"x", "x-delayed-message", true, false, false, false, nil)
	})
}

func likeInequivalent(p *player) {
	for _, kind := range []string{"classic", "quorum"} {
		base := amqp.Table{"x-queue-type": kind, "x-message-ttl": int64(60000), "x-dead-letter-exchange": "x"}
		p.queue(kind, base)
		change := func(name string, v any) amqp.Table {
			t := maps.Clone(base)
			if t[name] = v; v == nil {
				delete(t, name)
			}
			return t
		}
		p.queue(kind, base)
		p.queue(kind, change("x-message-ttl", int64(1)))
		p.queue(kind, change("x-message-ttl", int32(60000)))
		p.queue(kind, change("x-message-ttl", nil))
		p.queue(kind, change("x-max-length", int64(5)))
		p.queue(kind, change("x-dead-letter-exchange", "y"))
		p.queue(kind, change("x-delivery-limit", int64(7)))
		p.queue(kind, change("x-unknown", "v"))
		p.queue(kind, change("x-queue-type", map[string]string{"classic": "quorum", "quorum": "classic"}[kind]))
		p.queue(kind, change("x-queue-type", nil))
		p.queue(kind, nil)
	}
	p.queue("plain", nil)
	p.queue("plain", amqp.Table{"x-queue-type": "classic"})
	p.queue("plain", amqp.Table{"x-queue-type": "quorum"})
	p.exchange("x", "topic", amqp.Table{"alternate-exchange": "a"})
	p.exchange("x", "direct", nil)
	p.exchange("x", "topic", nil)
	p.exchange("x", "topic", amqp.Table{"alternate-exchange": "b"})
	for i, f := range [][3]bool{{false, false, false}, {true, true, false}, {true, false, true}} {
		p.try(fmt.Sprint("flags ", i), func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(p.prefix+"x", "topic", f[0], f[1], f[2], false, amqp.Table{"alternate-exchange": "a"})
		})
	}
	p.try("autodelete", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(p.prefix+"plain", true, true, false, false, nil)
		return err
	})
}

func likeNames(p *player) {
	for _, name := range []string{"amq.mine", ""} {
		p.try("exchange "+name, func(ch *amqp.Channel) error { return ch.ExchangeDeclare(name, "topic", true, false, false, false, nil) })
	}
	p.try("queue", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("amq.mine", true, false, false, false, nil)
		return err
	})
	p.try("again", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("amq.topic", "topic", true, false, false, false, nil)
	})
	p.try("look at the default", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive("", "direct", true, false, false, false, nil)
	})
	p.try("delete system", func(ch *amqp.Channel) error { return ch.ExchangeDelete("amq.topic", false, false) })
	p.try("delete default", func(ch *amqp.Channel) error { return ch.ExchangeDelete("", false, false) })
	p.queue("q", nil)
	p.try("bind default", func(ch *amqp.Channel) error { return ch.QueueBind(p.prefix+"q", "k", "", false, nil) })
	p.try("trace", func(ch *amqp.Channel) error {
		return ch.Publish("amq.rabbitmq.trace", "k", false, false, amqp.Publishing{})
	})
}

func likeArguments(p *player) {
	for i, args := range []amqp.Table{
		{"x-message-ttl": int64(-1)}, {"x-message-ttl": "1"}, {"x-message-ttl": int64(400 * 86400 * 365 * 1000)}, {"x-expires": int64(0)},
		{"x-max-length": int64(-1)}, {"x-max-length": "5"}, {"x-overflow": "none"}, {"x-overflow": int64(1)},
		{"x-dead-letter-routing-key": "k"}, {"x-dead-letter-exchange": int64(1)}, {"x-dead-letter-strategy": "never"},
		{"x-max-priority": int64(256)}, {"x-max-priority": int64(5)}, {"x-single-active-consumer": "yes"}, {"x-delivery-limit": int64(5)},
	} {
		for _, kind := range []string{"classic", "quorum"} {
			args := maps.Clone(args)
			args["x-queue-type"] = kind
			p.queue(fmt.Sprintf("%d-%s", i, kind), args)
		}
	}
	p.queue("kind", amqp.Table{"x-queue-type": "none"})
	p.queue("dlx", amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-overflow": "reject-publish-dlx"})
	for _, f := range [][3]bool{{false, false, false}, {true, true, false}, {true, false, true}} {
		p.try("quorum "+fmt.Sprint(f), func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(p.prefix+"quorum", f[0], f[1], f[2], false, amqp.Table{"x-queue-type": "quorum"})
			return err
		})
	}
}

func likeExclusive(p *player) {
	other := p.connect()
	defer func() { _ = other.Close() }()
	ch, err := other.Channel()
	p.must(err)
	_, err = ch.QueueDeclare(p.prefix+"q", false, false, true, false, nil)
	p.must(err)
	p.try("look", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(p.prefix+"q", false, false, true, false, nil)
		return err
	})
	p.try("declare", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(p.prefix+"q", false, false, true, false, nil)
		return err
	})
	p.queue("q", nil)
	p.try("consume", func(ch *amqp.Channel) error {
		_, err := ch.Consume(p.prefix+"q", "", false, false, false, false, nil)
		return err
	})
	p.try("delete", func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(p.prefix+"q", false, false, false)
		return err
	})
	p.try("bind", func(ch *amqp.Channel) error { return ch.QueueBind(p.prefix+"q", "k", "amq.topic", false, nil) })
	p.publish("", "q", amqp.Publishing{Body: []byte("m")})
	p.queue("busy", nil)
	_, err = ch.Consume(p.prefix+"busy", "", false, true, false, false, nil)
	p.must(err)
	p.try("second consumer", func(ch *amqp.Channel) error {
		_, err = ch.Consume(p.prefix+"busy", "", false, false, false, false, nil)
		return err
	})
}

func likeBindings(p *player) {
	p.queue("q", nil)
	p.exchange("x", "topic", nil)
	p.exchange("h", "headers", nil)
	p.bind("none", "q", "k", nil)
	p.bind("x", "q", "#.a.#.b", nil)
	p.bind("x", "q", "#.a.#.b.#", nil)
	p.bind("h", "q", "", amqp.Table{"x-match": "some"})
	p.bind("h", "q", "", amqp.Table{"x-match": "any"})
	p.try("unbind", func(ch *amqp.Channel) error { return ch.QueueUnbind(p.prefix+"q", "none", p.prefix+"x", nil) })
	p.try("unbind missing", func(ch *amqp.Channel) error { return ch.QueueUnbind(p.prefix+"q", "none", p.prefix+"none", nil) })
	p.try("to missing", func(ch *amqp.Channel) error { return ch.ExchangeBind(p.prefix+"none", "k", p.prefix+"x", false, nil) })
}

func likePublishing(p *player) {
	p.queue("q", nil)
	p.try("internal", func(ch *amqp.Channel) error {
		return cmp.Or(ch.ExchangeDeclare(p.prefix+"in", "topic", true, false, true, false, nil), ch.Publish(p.prefix+"in", "k", false, false, amqp.Publishing{}))
	})
	for _, m := range []amqp.Publishing{
		{Body: []byte("ok")}, {Expiration: "soon"}, {Expiration: "-1"}, {Expiration: "99999999999999"}, {UserId: "nobody"}, {UserId: "guest"},
		{ReplyTo: "amq.rabbitmq.reply-to"}, {Headers: amqp.Table{"CC": "q"}},
	} {
		p.try("publish", func(ch *amqp.Channel) error { return ch.Publish("", p.prefix+"q", false, false, m) })
	}
	p.try("no exchange", func(ch *amqp.Channel) error { return ch.Publish(p.prefix+"none", "k", false, false, amqp.Publishing{}) })
	p.try("immediate", func(ch *amqp.Channel) error { return ch.Publish("", p.prefix+"q", false, true, amqp.Publishing{}) })
}

func likeChannels(p *player) {
	p.queue("q", nil)
	p.try("ack", func(ch *amqp.Channel) error { return ch.Ack(7, false) })
	p.try("ack all", func(ch *amqp.Channel) error { return ch.Ack(0, true) })
	p.try("nack many", func(ch *amqp.Channel) error { return ch.Nack(7, true, true) })
	p.try("qos", func(ch *amqp.Channel) error { return ch.Qos(1, 1, false) })
	p.try("tag", func(ch *amqp.Channel) error {
		for range 2 {
			if _, err := ch.Consume(p.prefix+"q", "tag", false, false, false, false, nil); err != nil {
				return err
			}
		}
		return nil
	})
	p.try("recover", func(ch *amqp.Channel) error { return ch.Recover(false) }) //nolint:staticcheck // what brokers answer to clients that still use it
	p.try("cancel none", func(ch *amqp.Channel) error { return ch.Cancel("none", false) })
}

func likeDeleting(p *player) {
	p.queue("q", nil)
	p.publish("", "q", amqp.Publishing{Body: []byte("m")})
	p.holds("q", 1)
	p.try("if empty", func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(p.prefix+"q", false, true, false)
		return err
	})
	p.try("if unused", func(ch *amqp.Channel) error {
		if _, err := ch.Consume(p.prefix+"q", "", false, false, false, false, nil); err != nil {
			return err
		}
		_, err := ch.QueueDelete(p.prefix+"q", true, false, false)
		return err
	})
	p.exchange("x", "topic", nil)
	p.bind("x", "q", "k", nil)
	p.try("exchange", func(ch *amqp.Channel) error { return ch.ExchangeDelete(p.prefix+"x", true, false) })
	ch := p.channel()
	cancelled := ch.NotifyCancel(make(chan string, 1))
	_, err := ch.Consume(p.prefix+"q", "tag", false, false, false, false, nil)
	p.must(err)
	p.try("queue", func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(p.prefix+"q", false, false, false)
		return err
	})
	p.sayf("cancelled %s", <-cancelled)
}

func likeDeaths(p *player, kind string) {
	p.queue("last", amqp.Table{"x-queue-type": kind})
	p.queue("hold", amqp.Table{"x-queue-type": kind, "x-message-ttl": int64(50), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "last"})
	p.queue("rejects", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "hold"})
	p.exchange("x", "fanout", nil)
	p.bind("x", "rejects", "", nil)
	p.publish("x", "key", amqp.Publishing{Body: []byte("m"), Headers: amqp.Table{"own": int64(1), "CC": []any{"other"}}, Expiration: "60000"})
	ch := p.channel()
	for range 3 {
		d := p.get(ch, "rejects")
		p.must(d.Nack(false, false))
		dead := p.get(ch, "last")
		p.must(dead.Ack(false))
		// Publish the dead letter again unchanged.
		p.publish("x", "key", amqp.Publishing{Body: dead.Body, Headers: dead.Headers})
	}
	p.get(ch, "rejects")
}

func likeExpiry(p *player, kind string) {
	p.queue("last", amqp.Table{"x-queue-type": kind})
	p.queue("hold", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "last"})
	// The second message waits behind the first one, which never expires.
	p.publish("", "hold", amqp.Publishing{Body: []byte("expires"), Expiration: "100"})
	p.publish("", "hold", amqp.Publishing{Body: []byte("stays")})
	p.publish("", "hold", amqp.Publishing{Body: []byte("waits"), Expiration: "100"})
	ch := p.channel()
	p.get(ch, "last")
	p.empty("hold")
	stays := p.get(ch, "hold")
	p.get(ch, "last") // the message that waited behind it
	p.must(stays.Nack(false, false))
	p.get(ch, "last")
}

func likeCycle(p *player, kind string) {
	p.queue("a", amqp.Table{"x-queue-type": kind, "x-message-ttl": int64(50), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "b"})
	p.queue("b", amqp.Table{"x-queue-type": kind, "x-message-ttl": int64(50), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "a"})
	p.publish("", "a", amqp.Publishing{Body: []byte("round")})
	<-time.After(time.Second)
	p.empty("a")
	p.empty("b")
}

func likeLengths(p *player, kind string) {
	for _, overflow := range []string{"drop-head", "reject-publish"} {
		p.queue("dead-"+overflow, amqp.Table{"x-queue-type": kind})
		p.queue(overflow, amqp.Table{
			"x-queue-type": kind, "x-max-length": int64(2), "x-overflow": overflow,
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "dead-" + overflow,
		})
	}
	ch := p.channel()
	for i := range 4 {
		p.publish("", "drop-head", amqp.Publishing{Body: fmt.Append(nil, i)})
	}
	for _, q := range []string{"drop-head", "drop-head", "dead-drop-head", "dead-drop-head"} {
		p.get(ch, q)
	}
	for i := range 2 {
		p.publish("", "reject-publish", amqp.Publishing{Body: fmt.Append(nil, i)})
	}
	if kind == "classic" { // a quorum queue accepts some more messages before it notices
		p.publish("", "reject-publish", amqp.Publishing{Body: []byte("2")})
	}
	p.empty("dead-reject-publish")
}

func likeRequeue(p *player, kind string) {
	p.queue("dead", amqp.Table{"x-queue-type": kind})
	args := amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "dead"}
	p.queue("q", args)
	for _, body := range []string{"1", "2", "3"} {
		p.publish("", "q", amqp.Publishing{Body: []byte(body)})
	}
	ch := p.channel()
	first, second := p.get(ch, "q"), p.get(ch, "q")
	for _, d := range []amqp.Delivery{second, first} {
		p.must(d.Nack(false, true))
	}
	for range 3 {
		p.get(ch, "q")
	}
	_ = ch.Close()
	ch = p.channel()
	p.get(ch, "q")
	_ = ch.Close()
	if kind != "quorum" {
		return
	}
	args["x-delivery-limit"] = int64(2)
	p.queue("limited", args)
	p.publish("", "limited", amqp.Publishing{Body: []byte("m")})
	for range 6 { // returns the message by a nack if the broker counts that as a delivery, and otherwise by closing the channel
		ch := p.channel()
		d, ok, err := ch.Get(p.prefix+"limited", false)
		p.must(err)
		if !ok {
			break
		}
		p.sayf("limited: %s", letter(d))
		_ = d.Nack(false, true)
		again, ok, err := ch.Get(p.prefix+"limited", false)
		if err == nil && ok {
			p.sayf("limited again: %s", letter(again))
		}
		_ = ch.Close()
		<-time.After(200 * time.Millisecond)
	}
	ch = p.channel()
	p.get(ch, "dead")
}

func likePriorities(p *player, args amqp.Table) {
	p.queue("q", args)
	for i, priority := range []uint8{0, 9, 3, 5, 4, 9, 0, 7, 1, 200, 9, 6} {
		p.publish("", "q", amqp.Publishing{Body: fmt.Append(nil, i), Priority: priority})
	}
	ch := p.channel()
	for range 12 {
		p.get(ch, "q")
	}
}

func likeHeaders(p *player) {
	p.queue("q", nil)
	for i, args := range []amqp.Table{
		{"x-match": "all", "a": "1", "b": int32(2)}, {"x-match": "any", "a": "1", "b": int32(2)}, {"a": "1"}, {"x-match": "any"}, {"x-match": "all"},
		{"x-match": "all", "x-own": "1"}, {"x-match": "all-with-x", "x-own": "1"}, {"x-match": "any-with-x", "x-own": "1"}, {"a": nil},
	} {
		h := fmt.Sprintf("h%d", i)
		p.exchange(h, "headers", nil)
		p.bind(h, "q", "", args)
		for _, headers := range []amqp.Table{nil, {"a": "1"}, {"a": "1", "b": int64(2)}, {"b": int32(2)}, {"a": "2", "b": int32(2)}, {"x-own": "1"}, {"x-own": "2"}} {
			p.publish(h, "", amqp.Publishing{Body: fmt.Append(nil, args, headers), Headers: headers})
		}
	}
}

func likeUnroutable(p *player) {
	p.queue("lost", nil)
	p.exchange("ae", "fanout", nil)
	p.exchange("x", "topic", amqp.Table{"alternate-exchange": p.prefix + "ae"})
	p.exchange("y", "direct", amqp.Table{"alternate-exchange": p.prefix + "none"})
	p.publish("x", "k", amqp.Publishing{Body: []byte("nobody")})
	p.bind("ae", "lost", "", nil)
	p.publish("x", "k", amqp.Publishing{Body: []byte("lost")})
	p.publish("y", "k", amqp.Publishing{Body: []byte("nowhere")})
	p.publish("none", "k", amqp.Publishing{Body: []byte("no exchange")})
	p.empty("lost")
}
