package topology

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
)

// Validate checks a topology against the rules of brokers and of the delay strategies, including mistakes that a
// broker accepts silently. It reports all problems in one *ValidationError.
func (t Topology) Validate(opts ...Option) error {
	if found := t.problems(newRules(opts)); len(found) > 0 {
		return &ValidationError{Problems: published(found)}
	}
	return nil
}

type validator struct {
	rules
	t         Topology
	found     yamldoc.Problems
	exchanges map[string]bool // names that references may use
	queues    map[string]bool
}

func (t Topology) problems(r rules) yamldoc.Problems {
	v := &validator{rules: r, t: t, exchanges: map[string]bool{}, queues: map[string]bool{}}
	own := DeliveryTopology(r.prefix)
	for _, e := range slices.Concat(own.Exchanges, t.Exchanges) {
		v.exchanges[e.Name] = true
	}
	for _, q := range slices.Concat(own.Queues, t.Queues) {
		v.queues[q.Name] = true
	}
	for _, d := range t.Destinations {
		if !d.ToExchange() {
			v.queues[d.Queue] = true
			v.queues[d.DeadLetterQueue()] = true
		}
		if d.DeadLetter != "" {
			v.queues[d.DeadLetter] = true
		}
	}
	for i, e := range t.Exchanges {
		v.exchange(fmt.Sprintf("exchanges[%d]", i), e)
	}
	for i, q := range t.Queues {
		v.queue(fmt.Sprintf("queues[%d]", i), q)
	}
	for i, b := range t.Bindings {
		v.binding(fmt.Sprintf("bindings[%d]", i), b)
	}
	for i, d := range t.Destinations {
		v.destination(fmt.Sprintf("destinations[%d]", i), d)
	}
	v.rateLimits()
	v.duplicates()
	return v.found
}

func (v *validator) addf(path, format string, args ...any) {
	v.found.Addf(yamldoc.Place{}, path, format, args...)
}

// duplicates reports objects that are defined twice, even if the definitions are equal, because within one
// description that is a mistake.
func (v *validator) duplicates() {
	seen := map[string]string{}
	check := func(kind Kind, name, path, field, what string) {
		if name == "" {
			return
		}
		key := string(kind) + "\x00" + name
		if first, ok := seen[key]; ok {
			v.addf(path+field, "%s is already defined in %s; remove or change one of them", what, first)
			return
		}
		seen[key] = path
	}
	for i, e := range v.t.Exchanges {
		check(KindExchange, e.Name, fmt.Sprintf("exchanges[%d]", i), ".name", fmt.Sprintf("exchange %q", yamldoc.Clip(e.Name)))
	}
	for i, q := range v.t.Queues {
		check(KindQueue, q.Name, fmt.Sprintf("queues[%d]", i), ".name", fmt.Sprintf("queue %q", yamldoc.Clip(q.Name)))
	}
	for i, b := range v.t.Bindings {
		check(KindBinding, b.String(), fmt.Sprintf("bindings[%d]", i), "", "the same binding")
	}
	for i, d := range v.t.Destinations {
		path := fmt.Sprintf("destinations[%d]", i)
		if d.Queue == "" && d.Exchange == "" && d.RoutingKey == "" {
			continue
		}
		check(kindDestination, d.label(), path, ".name", fmt.Sprintf("destination %q", yamldoc.Clip(d.label())))
		check("target", strings.Join([]string{d.Queue, d.Exchange, d.RoutingKey}, "\x00"), path, "", "a destination of the same queue, or exchange and routing key,")
	}
}

// name checks the name of an object that will be declared. The path is the object's path.
func (v *validator) name(path, what, name string) {
	path += ".name"
	switch {
	case name == "":
		v.addf(path, "%s needs a name", what)
	case strings.HasPrefix(name, "amq."):
		v.addf(path, "%q begins with \"amq.\", which brokers reserve; choose another name", name)
	default:
		v.short(path, name)
	}
}

// short checks a value that AMQP encodes as a short string: up to 255 bytes of UTF-8. Line breaks are rejected, because
// brokers silently remove them from names, and so are zero bytes.
func (v *validator) short(path, s string) {
	switch {
	case len(s) > MaxRoutingKey:
		v.addf(path, "%d bytes is too long; expected at most %d; shorten %q by %d", len(s), MaxRoutingKey, yamldoc.Clip(s), len(s)-MaxRoutingKey)
	case !utf8.ValidString(s):
		v.addf(path, "expected UTF-8 text, got %q", yamldoc.Clip(s))
	case strings.ContainsAny(s, "\r\n\x00"):
		v.addf(path, "%q contains a line break or a zero byte, which names and routing keys cannot contain", yamldoc.Clip(s))
	}
}

// ownField maps the arguments that have their own field to that field.
var ownField = map[string]string{
	argument.QueueType: "type", argument.MessageTTL: "message_ttl", argument.DeadLetterExchange: "dead_letter.exchange",
	argument.DeadLetterRoutingKey: "dead_letter.routing_key", argument.DeadLetterStrategy: "dead_letter.at_least_once",
	argument.Overflow: "overflow", argument.MaxLength: "max_length", argument.MaxLengthBytes: "max_length_bytes",
	argument.DeliveryLimit: "delivery_limit", argument.SingleActiveConsumer: "single_active_consumer",
	argument.AlternateExchange: "alternate_exchange",
}

// arguments checks a table of arguments. It rejects arguments that have their own field, so that each can only be set
// in one place, and values that AMQP cannot encode.
func (v *validator) arguments(path string, t map[string]any) {
	path += ".arguments"
	for _, k := range slices.Sorted(maps.Keys(t)) {
		at := path + "." + k
		if field, ok := ownField[k]; ok {
			v.addf(at, "%s has its own field; set %s instead", k, field)
			continue
		}
		if k == "" || len(k) > MaxRoutingKey {
			v.addf(at, "expected an argument name of 1 to %d bytes, got %d bytes", MaxRoutingKey, len(k))
		}
		if !carried(t[k]) {
			v.addf(at, "AMQP cannot encode a %T; use text, an integer, a float, a boolean, a list or a table of these", t[k])
		}
	}
}

// carried reports whether AMQP 0-9-1 can encode a value in a table.
func carried(v any) bool {
	switch x := v.(type) {
	case nil, bool, string, []byte, time.Time, float32, float64, int, int8, int16, int32, int64, uint8, uint16, uint32:
		return true
	case []any:
		return !slices.ContainsFunc(x, func(e any) bool { return !carried(e) })
	}
	t, ok := argument.AsTable(v)
	for _, e := range t {
		ok = ok && carried(e)
	}
	return ok
}

// reference checks the name of an exchange or queue that must exist.
func (v *validator) reference(path string, kind Kind, name string) {
	known := v.queues
	if kind == KindExchange {
		known = v.exchanges
		if name == "" || strings.HasPrefix(name, "amq.") {
			return
		}
	}
	if !known[name] && !v.undeclared {
		v.addf(path, "%s %q is not declared here; declare it (an existing one may be declared again with the same arguments) or correct the name", kind, yamldoc.Clip(name))
	}
}

func (v *validator) exchange(path string, e Exchange) {
	v.name(path, "an exchange", e.Name)
	switch e.Kind {
	case "direct", "fanout", "topic", "headers":
	case "":
		v.addf(path+".type", "an exchange needs a type: direct, fanout, topic, headers, or one that a plugin adds (x-...)")
	default:
		if !strings.HasPrefix(e.Kind, "x-") {
			v.addf(path+".type", "unknown exchange type %q; expected direct, fanout, topic, headers, or one that a plugin adds (x-...)", yamldoc.Clip(e.Kind))
		}
	}
	if e.Kind == argument.DelayedExchange {
		if s, ok := e.Arguments[argument.DelayedType].(string); !ok || s == "" {
			v.addf(path+".arguments."+argument.DelayedType, "an x-delayed-message exchange needs the exchange type that routes messages after the delay, e.g. topic; got %s", argument.Format(e.Arguments[argument.DelayedType]))
		}
	}
	if e.AlternateExchange != "" {
		v.short(path+".alternate_exchange", e.AlternateExchange)
		v.reference(path+".alternate_exchange", KindExchange, e.AlternateExchange)
	}
	v.arguments(path, e.Arguments)
}

func (v *validator) queue(path string, q Queue) {
	v.name(path, "a queue", q.Name)
	classic := q.Type == Classic
	switch q.Type {
	case "", Quorum, Classic:
	default:
		v.addf(path+".type", "unknown queue type %q; expected %s or %s", yamldoc.Clip(string(q.Type)), Quorum, Classic)
	}
	if q.MessageTTL != nil {
		switch d, path := *q.MessageTTL, path+".message_ttl"; {
		case d < 0:
			v.addf(path, "expected 0 to %s, got %s", FormatDuration(MaxTTL), FormatDuration(d))
		case d > MaxTTL:
			v.addf(path, "%s is too long: a broker accepts at most %s (ten years)", FormatDuration(d), FormatDuration(MaxTTL))
		case d%time.Millisecond != 0:
			v.addf(path, "expected whole milliseconds, got %s", FormatDuration(d))
		}
	}
	switch q.Overflow {
	case "", argument.DropHead, argument.RejectPublish:
	case argument.RejectPublishDLX:
		if !classic {
			v.addf(path+".overflow", "a quorum queue treats %s as %s; expected %s or %s", argument.RejectPublishDLX, argument.DropHead, argument.DropHead, argument.RejectPublish)
		}
	default:
		v.addf(path+".overflow", "unknown overflow %q; expected %s, %s, or on a classic queue %s", yamldoc.Clip(q.Overflow), argument.DropHead, argument.RejectPublish, argument.RejectPublishDLX)
	}
	v.deadLetter(path, q, classic)
	v.count(path+".max_length", q.MaxLength, 0)
	v.count(path+".max_length_bytes", q.MaxLengthBytes, 0)
	if q.DeliveryLimit != nil && classic {
		v.addf(path+".delivery_limit", "only quorum queues have a delivery limit, and this is a classic queue; remove the limit or change the type")
	} else {
		v.count(path+".delivery_limit", q.DeliveryLimit, -1)
	}
	v.loop(path, q)
	v.expires(path, q)
	v.priorities(path, q, classic)
	v.arguments(path, q.Arguments)
}

// loop rejects a queue whose messages return to it by expiring in a cycle of queues with a TTL, because the broker
// drops a message that completes such a cycle without having been rejected.
func (v *validator) loop(path string, q Queue) {
	next := func(q Queue) (Queue, bool) {
		if q.MessageTTL == nil || q.DeadLetter == nil || q.DeadLetter.Exchange != "" || q.DeadLetter.RoutingKey == nil {
			return Queue{}, false
		}
		i := slices.IndexFunc(v.t.Queues, func(x Queue) bool { return x.Name == *q.DeadLetter.RoutingKey })
		if i < 0 {
			return Queue{}, false
		}
		return v.t.Queues[i], true
	}
	way := []string{q.Name}
	for at, ok := next(q); ok && len(way) <= len(v.t.Queues); at, ok = next(at) {
		way = append(way, at.Name)
		if at.Name == q.Name {
			v.addf(path+".dead_letter", "messages would expire in a cycle (%s), and brokers drop such messages; remove the message_ttl of one of the queues, or change its dead_letter", yamldoc.Clip(strings.Join(way, " -> ")))
			return
		}
	}
}

func (v *validator) count(path string, n *int64, least int64) {
	if n != nil && *n < least {
		v.addf(path, "expected %d or more, got %d", least, *n)
	}
}

func (v *validator) deadLetter(path string, q Queue, classic bool) {
	d := q.DeadLetter
	if d == nil {
		return
	}
	path += ".dead_letter"
	v.short(path+".exchange", d.Exchange)
	v.reference(path+".exchange", KindExchange, d.Exchange)
	if d.RoutingKey != nil {
		v.short(path+".routing_key", *d.RoutingKey)
		if d.Exchange == "" && *d.RoutingKey == q.Name && q.IsDelay() {
			v.addf(path+".routing_key", "the queue dead-letters to itself, so an expired message would be dropped as a cycle; name another queue")
		}
	}
	if !d.AtLeastOnce {
		return
	}
	if classic {
		v.addf(path+".at_least_once", "only quorum queues dead-letter at least once, and this is a classic queue; remove at_least_once or change the type")
	} else if q.Overflow != argument.RejectPublish {
		v.addf(path+".at_least_once", "at_least_once needs overflow: %s, got %q; with any other overflow the broker silently dead-letters at most once", argument.RejectPublish, q.Overflow)
	}
}

// expires checks x-expires. With this argument the broker deletes a queue and its messages if no client has consumed
// from it for that time. Delay queues never have consumers, so they must not have the argument.
func (v *validator) expires(path string, q Queue) {
	value, ok := q.Arguments[argument.Expires]
	if !ok {
		return
	}
	path += ".arguments." + argument.Expires
	if q.IsDelay() || v.prefix != "" && strings.HasPrefix(q.Name, v.prefix+".") {
		v.addf(path, "a delay queue must not expire: the broker would delete it with the messages that wait in it; remove %s", argument.Expires)
		return
	}
	if n, ok := argument.Integer(value); !ok || n < 1 || n > MaxTTL.Milliseconds() {
		v.addf(path, "expected 1 to %d milliseconds, got %s", MaxTTL.Milliseconds(), argument.Format(value))
	}
}

func (v *validator) priorities(path string, q Queue, classic bool) {
	value, ok := q.Arguments[argument.MaxPriority]
	if !ok {
		return
	}
	path += ".arguments." + argument.MaxPriority
	if !classic {
		v.addf(path, "quorum queues do not support %s, because they have two built-in priorities (RabbitMQ 4.0 or later); remove the argument or make the queue classic", argument.MaxPriority)
		return
	}
	if n, ok := argument.Integer(value); !ok || n < 0 || n > 255 {
		v.addf(path, "expected 0 to 255, got %s", argument.Format(value))
	}
}

func (v *validator) binding(path string, b Binding) {
	if b.Exchange == "" {
		v.addf(path+".exchange", "a binding needs a source exchange; the default exchange routes to every queue by its name and accepts no bindings")
	} else {
		v.short(path+".exchange", b.Exchange)
		v.reference(path+".exchange", KindExchange, b.Exchange)
	}
	switch {
	case b.Queue != "" && b.ToExchange != "":
		v.addf(path, "a binding leads either to queue %q or to exchange %q; remove queue or to_exchange", yamldoc.Clip(b.Queue), yamldoc.Clip(b.ToExchange))
	case b.Queue == "" && b.ToExchange == "":
		v.addf(path, "a binding needs a destination: set queue or to_exchange")
	case b.Queue != "":
		v.short(path+".queue", b.Queue)
		v.reference(path+".queue", KindQueue, b.Queue)
	default:
		v.short(path+".to_exchange", b.ToExchange)
		v.reference(path+".to_exchange", KindExchange, b.ToExchange)
	}
	v.short(path+".routing_key", b.RoutingKey)
	v.arguments(path, b.Arguments)
}

// rateLimits reports exchanges whose destinations have different rate limits.
func (v *validator) rateLimits() {
	first := map[string]int{}
	for i, d := range v.t.Destinations {
		if d.Exchange == "" || d.RateLimit == nil {
			continue
		}
		at, listed := first[d.Exchange]
		if !listed {
			first[d.Exchange] = i
		} else if *v.t.Destinations[at].RateLimit != *d.RateLimit {
			v.addf(fmt.Sprintf("destinations[%d].rate_limit", i), "exchange %q has a different rate limit at destinations[%d]; all its routing keys share one rate limit", yamldoc.Clip(d.Exchange), at)
		}
	}
}

func (v *validator) destination(path string, d Destination) {
	v.short(path+".name", d.Name)
	if err := d.Validate(v.prefix); err != nil {
		v.addf(path, "%v", err)
		return
	}
	if d.ServerNamed() {
		v.addf(path+".queue", "%q begins with \"amq.\", which brokers reserve; choose another name", d.Queue)
	}
	v.short(path+".queue", d.Queue)
	v.short(path+".exchange", d.Exchange)
	v.short(path+".routing_key", d.RoutingKey)
	if d.ToExchange() {
		v.reference(path+".exchange", KindExchange, d.Exchange)
	}
	switch {
	case !d.ToExchange() && d.DeadLetterQueue() == d.Queue:
		v.addf(path+".dead_letter", "%q is the destination itself, so a failed message would be delivered again forever; name another queue", yamldoc.Clip(d.DeadLetter))
	case !d.ToExchange() && len(d.DeadLetterQueue()) > MaxRoutingKey:
		v.addf(path+".dead_letter", "the name of the dead-letter queue is %d bytes long; expected at most %d; set a shorter one", len(d.DeadLetterQueue()), MaxRoutingKey)
	default:
		v.short(path+".dead_letter", d.DeadLetter)
	}
	if d.Retry != nil {
		v.retry(path+".retry", *d.Retry)
	}
	if d.RateLimit != nil && !d.RateLimit.Valid() {
		v.addf(path+".rate_limit", "expected per_second from one a day (0.0000116) to %d and a burst from 1 to %d, got %v and %d", MaxPerSecond, MaxPerSecond, d.RateLimit.PerSecond, d.RateLimit.Burst)
	}
	if d.Lead != nil && (*d.Lead < 0 || *d.Lead > MaxLead || *d.Lead%time.Millisecond != 0) {
		v.addf(path+".lead", "expected 0 to %s in whole milliseconds, got %s", FormatDuration(MaxLead), FormatDuration(*d.Lead))
	}
}

// retryKeys maps the fields of Retry to their YAML keys.
var retryKeys = map[string]string{
	"MaxAttempts": "max_attempts", "ImmediateRetries": "immediate_retries", "Backoff": "backoff", "MaxBackoff": "max_backoff", "Multiplier": "multiplier", "Jitter": "jitter",
}

func (v *validator) retry(path string, r Retry) {
	joined, ok := r.Validate().(interface{ Unwrap() []error })
	if !ok {
		return
	}
	for _, err := range joined.Unwrap() {
		if f, ok := errors.AsType[*FieldError](err); ok {
			v.addf(path+"."+retryKeys[f.Field], "expected %s, got %s", f.Want, f.Given())
		}
	}
}
