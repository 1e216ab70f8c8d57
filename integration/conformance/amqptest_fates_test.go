package conformance_test

import (
	"fmt"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// fates returns scripts about messages that are requeued or dead-lettered, or that are published with headers that only
// a broker should write.
func fates() []likenessCase {
	cases := []likenessCase{
		{"values", likeValues},
		{"properties", likeProperties},
	}
	for _, kind := range []string{"classic", "quorum"} {
		cases = append(cases,
			likenessCase{"prefetch of a channel " + kind, func(p *player) { likeGlobalPrefetch(p, kind) }},
			likenessCase{"copies " + kind, func(p *player) { likeCopies(p, kind) }},
			likenessCase{"foreign deaths " + kind, func(p *player) { likeForeignDeaths(p, kind) }},
			likenessCase{"returned " + kind, func(p *player) { likeReturned(p, kind) }},
		)
		for _, to := range []string{"classic", "quorum"} {
			for _, way := range dying {
				cases = append(cases, likenessCase{way.name + " " + kind + " " + to, func(p *player) { likeDead(p, way, kind, to) }})
			}
		}
	}
	for _, limit := range []any{nil, int64(-1), int64(-5), int64(1), int64(3), "x"} {
		cases = append(cases, likenessCase{fmt.Sprint("limit ", limit), func(p *player) { likeLimited(p, limit) }})
	}
	return cases
}

// likeValues declares and consumes with unusual argument values.
func likeValues(p *player) {
	for _, a := range []struct {
		name   string
		values []any
	}{
		{"x-quorum-initial-group-size", []any{int64(0), int64(-1), int64(3), "3"}},
		{"x-consumer-timeout", []any{int64(-5), int64(0), int64(60000), "60000"}},
		{"x-delivery-limit", []any{"x", "5", int64(0), int64(-1), int64(-5), 2.5}},
		{"x-max-in-memory-length", []any{int64(-1), int64(0), "x"}},
		{"x-max-in-memory-bytes", []any{int64(-1), int64(0), "x"}},
		{"x-max-length-bytes", []any{int64(-1), int64(0), "x"}},
		{"x-queue-leader-locator", []any{"none", "balanced", int64(1)}},
		{"x-queue-master-locator", []any{"min-masters"}},
		{"x-queue-mode", []any{"none", "lazy", int64(1)}},
		{"x-queue-version", []any{int64(0), int64(1), int64(2), int64(3), "2"}},
		{"x-max-age", []any{"1D"}},
		{"x-initial-cluster-size", []any{int64(1)}},
		{"x-stream-max-segment-size-bytes", []any{int64(1)}},
		{"x-max-priority", []any{int64(-1), int64(0), "x"}},
		{"x-expires", []any{int64(-1), int64(400 * 86400 * 365 * 1000), "x", true}},
		{"x-message-ttl", []any{int64(0), 1.5, nil, true, []byte("1"), time.Unix(1, 0)}},
		{"x-dead-letter-strategy", []any{"at-most-once", "at-least-once", int64(1)}},
		{"x-queue-type", []any{int64(1), "", "stream2"}},
		{"x-single-active-consumer", []any{true, int64(1)}},
		{"x-unknown", []any{"v", int64(1)}},
	} {
		for i, v := range a.values {
			for _, kind := range []string{"classic", "quorum"} {
				args := amqp.Table{"x-queue-type": kind}
				args[a.name] = v
				p.queue(fmt.Sprintf("%s-%d-%s", a.name, i, kind), args)
			}
		}
	}
	p.try("transient", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(p.prefix+"transient", false, false, false, false, nil)
		return err
	})
	p.queue("q", nil)
	for i, v := range []any{"none", int64(5), 1.5, true} {
		p.try(fmt.Sprint("consume with priority ", i), func(ch *amqp.Channel) error {
			_, err := ch.Consume(p.prefix+"q", "", false, false, false, false, amqp.Table{"x-priority": v})
			return err
		})
	}
}

// likeProperties publishes with unusual values.
func likeProperties(p *player) {
	for _, kind := range []string{"classic", "quorum"} {
		p.queue(kind, amqp.Table{"x-queue-type": kind})
		for i, m := range []amqp.Publishing{
			{DeliveryMode: 1}, {DeliveryMode: 2}, {DeliveryMode: 3}, {DeliveryMode: 7}, {Priority: 255},
			{Expiration: "1 "}, {Expiration: "+90000"}, {Expiration: "0x10"},
			{Headers: amqp.Table{"CC": []any{int64(1)}}}, {Headers: amqp.Table{"BCC": "q"}}, {Headers: amqp.Table{"BCC": []any{true}}},
			{UserId: "", AppId: "app", Type: "type", ContentEncoding: "gzip", ContentType: "text/plain", CorrelationId: "c", ReplyTo: "r", Timestamp: time.Unix(1, 0)},
		} {
			m.Body = fmt.Append(nil, i)
			p.publish("", kind, m)
		}
		ch := p.channel()
		for {
			d, ok, err := ch.Get(p.prefix+kind, true)
			if err != nil || !ok {
				break
			}
			p.sayf("%s, mode %d, priority %d, %s %s %s %s %s %s %v", letter(d), d.DeliveryMode, d.Priority, d.AppId,
				d.Type, d.ContentEncoding, d.ContentType, d.CorrelationId, d.ReplyTo, d.Timestamp.UTC())
		}
		_ = ch.Close()
	}
}

// likeGlobalPrefetch limits the number of unacknowledged messages that two consumers on a channel have together.
func likeGlobalPrefetch(p *player, kind string) {
	p.try("size", func(ch *amqp.Channel) error { return ch.Qos(3, 10, true) })
	p.queue("q", amqp.Table{"x-queue-type": kind})
	for i := range 5 {
		p.publish("", "q", amqp.Publishing{Body: fmt.Append(nil, i)})
	}
	p.try("consume", func(ch *amqp.Channel) error {
		if err := ch.Qos(2, 0, true); err != nil {
			return err
		}
		for _, tag := range []string{"a", "b"} {
			if _, err := ch.Consume(p.prefix+"q", tag, false, false, false, false, nil); err != nil {
				return err
			}
		}
		left := 0
		for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
			q, err := ch.QueueDeclarePassive(p.prefix+"q", true, false, false, false, nil)
			if err != nil {
				return err
			}
			if left = q.Messages; left == 1 {
				break
			}
		}
		p.sayf("%d are left", left)
		return nil
	})
}

// likeCopies dead-letters a message with CC and BCC headers, with and without a dead-letter routing key.
func likeCopies(p *player, kind string) {
	for _, key := range []string{"", "key"} {
		name := func(s string) string { return s + key }
		dead := []string{"to", "cc", "bcc", "none", "nowhere", "key"}
		p.exchange(name("dlx"), "direct", nil)
		for _, q := range dead {
			p.queue(name("dead-"+q), amqp.Table{"x-queue-type": kind})
			p.bind(name("dlx"), name("dead-"+q), p.prefix+name(q), nil)
		}
		args := amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": p.prefix + name("dlx")}
		if key != "" {
			args["x-dead-letter-routing-key"] = p.prefix + name("key")
		}
		for _, q := range dead[:3] {
			p.queue(name(q), args)
		}
		p.publish("", name("to"), amqp.Publishing{Body: []byte("m"), Headers: amqp.Table{
			"CC": []any{p.prefix + name("cc"), p.prefix + name("none")}, "BCC": []any{p.prefix + name("bcc"), p.prefix + name("nowhere")},
		}})
		ch := p.channel()
		for _, q := range dead[:3] {
			p.must(p.get(ch, name(q)).Nack(false, false))
			if key != "" {
				p.must(p.get(ch, name("dead-key")).Ack(false))
				continue
			}
			for _, to := range []string{"to", "cc", "none"} {
				p.must(p.get(ch, name("dead-"+to)).Ack(false))
			}
		}
		_ = ch.Close()
		for _, q := range dead {
			p.empty(name("dead-" + q))
		}
	}
}

// likeForeignDeaths publishes messages with headers that only a broker writes, and has them dead-lettered.
func likeForeignDeaths(p *player, kind string) {
	p.queue("dead", amqp.Table{"x-queue-type": kind})
	p.queue("q", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "dead"})
	death := func(queue, reason string) amqp.Table {
		return amqp.Table{"queue": queue, "reason": reason, "exchange": "x", "count": int64(3), "time": time.Unix(1, 0), "routing-keys": []any{"k"}}
	}
	first := amqp.Table{"x-first-death-queue": "first", "x-first-death-reason": "expired", "x-first-death-exchange": "x"}
	with := func(deaths any) amqp.Table {
		t := maps.Clone(first)
		t["x-death"] = deaths
		return t
	}
	for i, headers := range []amqp.Table{
		{"x-death": []any{death("other", "rejected")}},
		{"x-death": []any{death("other", "expired"), death(p.prefix+"q", "rejected")}},
		with([]any{death(p.prefix+"q", "expired")}),
		with("none"),
		first,
		{"x-last-death-queue": "last", "x-last-death-reason": "expired", "x-last-death-exchange": "x"},
		{"x-death": []any{}},
		{"x-death": "none"},
		{"x-death": []any{amqp.Table{"queue": "other"}}},
		{"x-death": []any{amqp.Table{"queue": p.prefix + "q", "reason": "rejected"}}},
		{"x-delivery-count": int64(500)},
		{"x-delivery-count": "many"},
		{"x-acquired-count": int64(7)},
	} {
		p.publish("", "q", amqp.Publishing{Body: fmt.Append(nil, i), Headers: headers})
		ch := p.channel()
		p.must(p.get(ch, "q").Nack(false, false))
		p.must(p.get(ch, "dead").Ack(false))
		_ = ch.Close()
	}
}

// returning lists the ways to return a message to its queue.
var returning = []struct {
	name string
	do   func(ch *amqp.Channel, d amqp.Delivery) error
}{
	{"reject", func(_ *amqp.Channel, d amqp.Delivery) error { return d.Reject(true) }},
	{"nack", func(_ *amqp.Channel, d amqp.Delivery) error { return d.Nack(false, true) }},
	{"nack all", func(ch *amqp.Channel, _ amqp.Delivery) error { return ch.Nack(0, true, true) }},
	{"recover", func(ch *amqp.Channel, _ amqp.Delivery) error { return ch.Recover(true) }}, //nolint:staticcheck // some clients still use this deprecated method
	{"close", func(ch *amqp.Channel, _ amqp.Delivery) error { return ch.Close() }},
}

// likeReturned returns a message twice in every way, and then has it dead-lettered.
func likeReturned(p *player, kind string) {
	p.queue("dead", amqp.Table{"x-queue-type": "quorum"})
	p.queue("q", amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "dead"})
	for _, way := range returning {
		p.publish("", "q", amqp.Publishing{Body: []byte(way.name)})
		for range 2 {
			ch := p.channel()
			p.must(way.do(ch, p.get(ch, "q")))
			_ = ch.Close()
		}
		ch := p.channel()
		p.must(p.get(ch, "q").Nack(false, false))
		p.must(p.get(ch, "dead").Ack(false))
		_ = ch.Close()
	}
}

// likeLimited returns messages to a quorum queue with a delivery limit.
func likeLimited(p *player, limit any) {
	for _, way := range returning {
		p.queue(way.name+" dead", amqp.Table{"x-queue-type": "classic"})
		args := amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + way.name + " dead"}
		if limit != nil {
			args["x-delivery-limit"] = limit
		}
		p.queue(way.name, args)
		for _, body := range []string{"1", "2", "3"} {
			p.publish("", way.name, amqp.Publishing{Body: []byte(body)})
		}
		for range 7 {
			ch := p.channel()
			d, ok := p.next(ch, way.name, way.name+" dead", 3)
			if ok {
				p.must(way.do(ch, d))
			}
			_ = ch.Close()
		}
	}
}

// next waits until all messages are ready in the queue or in its dead-letter queue, and then gets one from the queue.
func (p *player) next(ch *amqp.Channel, queue, dead string, all int) (d amqp.Delivery, ok bool) {
	for deadline := time.Now().Add(suite.Patience); time.Now().Before(deadline); <-time.After(5 * time.Millisecond) {
		alive, err := ch.QueueDeclarePassive(p.prefix+queue, true, false, false, false, nil)
		p.must(err)
		gone, err := ch.QueueDeclarePassive(p.prefix+dead, true, false, false, false, nil)
		p.must(err)
		switch all {
		case gone.Messages:
			p.sayf("%s: all are dead", queue)
			return d, false
		case gone.Messages + alive.Messages:
			d, ok, err := ch.Get(p.prefix+queue, false)
			p.must(err)
			if ok {
				p.sayf("%s: %s", queue, letter(d))
				return d, true
			}
		}
	}
	p.must(fmt.Errorf("timed out waiting for %d messages in %s and %s", all, queue, dead))
	return d, false
}

// fatal is a way to make a queue dead-letter a message.
type fatal struct {
	name string
	args amqp.Table // arguments of the queue
	back []int      // how many times the message is returned first
	do   func(p *player, ch *amqp.Channel, queue string) error
}

var dying = []fatal{
	{"reject", nil, []int{0, 1, 2}, func(p *player, ch *amqp.Channel, q string) error { return p.get(ch, q).Reject(false) }},
	{"nack", nil, []int{0, 1, 2}, func(p *player, ch *amqp.Channel, q string) error { return p.get(ch, q).Nack(false, false) }},
	{"expire", nil, []int{0, 1}, nil},
	{"overflow", amqp.Table{"x-max-length": int64(1)}, []int{0}, func(p *player, _ *amqp.Channel, q string) error {
		p.publish("", q, amqp.Publishing{Body: []byte("next")})
		return nil
	}},
	{"limit", amqp.Table{"x-delivery-limit": int64(1)}, []int{2}, nil},
}

// likeDead has messages dead-lettered from a queue to the next one, and from there too.
func likeDead(p *player, way fatal, kind, to string) {
	if kind == "classic" && way.name == "limit" {
		return
	}
	p.queue("last", amqp.Table{"x-queue-type": "quorum"})
	dead := amqp.Table{"x-queue-type": to, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "last"}
	if to == "quorum" {
		dead["x-delivery-limit"] = int64(2)
	}
	p.queue("dead", dead)
	for _, safe := range []bool{false, true} {
		args := amqp.Table{"x-queue-type": kind, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": p.prefix + "dead"}
		if safe {
			if kind == "classic" || way.name == "overflow" {
				return
			}
			args["x-dead-letter-strategy"], args["x-overflow"] = "at-least-once", "reject-publish"
		}
		maps.Copy(args, way.args)
		for _, back := range way.back {
			q := fmt.Sprintf("q%d-%t", back, safe)
			p.queue(q, args)
			m := amqp.Publishing{Body: []byte(q)}
			if way.name == "expire" {
				m.Expiration = "1000"
			}
			p.publish("", q, m)
			for range back {
				ch := p.channel()
				if _, ok := p.next(ch, q, "dead", 1); !ok {
					p.sayf("%s: %s", q, tooLate)
					return
				}
				p.must(ch.Close()) // every version counts the delivery if the channel is closed
			}
			ch := p.channel()
			if way.do != nil {
				p.must(way.do(p, ch, q))
			}
			for _, settle := range []func(amqp.Delivery) error{
				func(d amqp.Delivery) error { return d.Reject(true) },
				func(d amqp.Delivery) error { return d.Nack(false, true) },
				func(d amqp.Delivery) error { return d.Reject(false) },
			} {
				if d, ok := p.next(ch, "dead", "last", 1); ok {
					p.must(settle(d))
				}
			}
			p.must(p.get(ch, "last").Ack(false))
			_ = ch.Close()
		}
	}
}
