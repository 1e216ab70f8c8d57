package rabbit

import (
	"reflect"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// delayedKind is the exchange type of the delayed-message plugin.
const delayedKind = "x-delayed-message"

// ExchangeSpec contains the arguments of exchange.declare.
type ExchangeSpec struct {
	Name, Kind                    string
	Durable, AutoDelete, Internal bool
	Args                          amqp.Table
}

// Exchange is an exchange with its outgoing bindings.
type Exchange struct {
	ExchangeSpec

	vhost    *VHost
	bindings []*Binding
	direct   map[string][]*Binding // by routing key; nil for kinds that do not use it
	topic    map[string][]*Binding // by the first word of the pattern; "" if that word is a wildcard
}

// Binding is a binding from an exchange to a queue or another exchange.
type Binding struct {
	Source     string
	Queue      string // exactly one of Queue and ToExchange is set
	ToExchange string
	Key        string
	Args       amqp.Table

	pattern   []string
	effective int64 // when the binding starts to route messages
}

func (b *Binding) same(x *Binding) bool {
	return b.Source == x.Source && b.Queue == x.Queue && b.ToExchange == x.ToExchange && b.Key == x.Key &&
		(len(b.Args) == 0 && len(x.Args) == 0 || reflect.DeepEqual(b.Args, x.Args))
}

// kind returns the exchange type that determines the routing. An x-delayed-message exchange specifies it in an
// argument.
func (e *Exchange) kind() string {
	if e.Kind == delayedKind {
		k, _ := e.Args["x-delayed-type"].(string)
		return k
	}
	return e.Kind
}

func (e *Exchange) of() string { return "exchange '" + e.Name + "' in vhost '" + e.vhost.name + "'" }

// CheckExchangeKind returns an error for exchange types that the broker does not support. Before 4.0 that error closes
// the connection.
func (v *VHost) CheckExchangeKind(kind string) *Error {
	switch kind {
	case "direct", "fanout", "topic", "headers":
		return nil
	case delayedKind:
		if v.broker.opts.Plugin {
			return nil
		}
	}
	code := amqp.PreconditionFailed
	if !v.is(4, 0, 0) {
		code = amqp.CommandInvalid
	}
	return Refusal(code, "unknown exchange type '%s'", kind)
}

// CheckExchange implements a passive declaration, which fails if the exchange does not exist.
func (v *VHost) CheckExchange(name string) *Error {
	if name == "" {
		return notDefault()
	}
	if v.exchanges[name] == nil {
		return missing("exchange", name, v.name)
	}
	return nil
}

func notDefault() *Error {
	return Refusal(amqp.AccessRefused, "operation not permitted on the default exchange")
}

// DeclareExchange creates an exchange, or checks that the existing one is equivalent.
func (v *VHost) DeclareExchange(s ExchangeSpec) *Error {
	if err := v.CheckExchangeKind(s.Kind); err != nil {
		return err
	}
	if s.Name == "" {
		return notDefault()
	}
	if e := v.exchanges[s.Name]; e != nil {
		return e.equivalent(s)
	}
	if strings.HasPrefix(s.Name, "amq.") {
		return reserved("exchange", s.Name)
	}
	if ae, ok := s.Args["alternate-exchange"]; ok {
		if _, ok := ae.(string); !ok {
			return precondition("invalid type '%s' for arg 'alternate-exchange' in exchange '%s' in vhost '%s'", typeName(ae), s.Name, v.name)
		}
	}
	if s.Kind == delayedKind {
		kind, _ := s.Args["x-delayed-type"].(string)
		if kind == delayedKind || v.CheckExchangeKind(kind) != nil {
			return precondition("Invalid argument, 'x-delayed-type' must be an existing exchange type")
		}
	}
	v.exchanges[s.Name] = &Exchange{ExchangeSpec: s, vhost: v}
	return nil
}

func (e *Exchange) equivalent(s ExchangeSpec) *Error {
	if e.Kind != s.Kind {
		return inequivalent("type", e.of(), "'"+s.Kind+"'", "'"+e.Kind+"'")
	}
	err := sameFlags(e.of(), flag{"durable", e.Durable, s.Durable}, flag{"auto_delete", e.AutoDelete, s.AutoDelete}, flag{"internal", e.Internal, s.Internal})
	if err != nil {
		return err
	}
	keys := []string{"alternate-exchange"}
	if e.Kind == delayedKind {
		keys = append(keys, "x-delayed-type")
	}
	return sameArgs(e.of(), e.Args, s.Args, keys)
}

// DeleteExchange deletes an exchange and the bindings from and to it. It also succeeds if the exchange does not exist.
func (v *VHost) DeleteExchange(name string, ifUnused bool) *Error {
	if name == "" {
		return notDefault()
	}
	if strings.HasPrefix(name, "amq.") {
		return Refusal(amqp.AccessRefused, "deletion of system exchange '%s' in vhost '%s' not allowed", name, v.name)
	}
	e := v.exchanges[name]
	if e == nil {
		return nil
	}
	if ifUnused && len(e.bindings) > 0 {
		return precondition("%s in use", e.of())
	}
	delete(v.exchanges, name)
	v.unbindAll(func(b *Binding) bool { return b.ToExchange == name })
	return nil
}

// Bind adds a binding. It returns the time at which the binding becomes effective, which is also when the broker
// answers the client that declared the binding. If the binding already exists, the broker answers immediately.
func (v *VHost) Bind(b Binding, owner any) (effective int64, err *Error) {
	e, err := v.ends(b, owner)
	if err != nil {
		return 0, err
	}
	for _, have := range e.bindings {
		if have.same(&b) {
			return v.broker.now, nil
		}
	}
	if err := v.checkBinding(e, b); err != nil {
		return 0, err
	}
	b.effective = v.broker.now
	if e.kind() == "topic" {
		b.effective += v.broker.opts.LateBindings.Milliseconds()
	}
	e.add(&b)
	return b.effective, nil
}

// ends checks both ends of a binding and returns the source.
func (v *VHost) ends(b Binding, owner any) (*Exchange, *Error) {
	if b.Source == "" || b.Queue == "" && b.ToExchange == "" {
		return nil, notDefault()
	}
	e := v.exchanges[b.Source]
	if e == nil {
		return nil, missing("exchange", b.Source, v.name)
	}
	if b.ToExchange != "" {
		if v.exchanges[b.ToExchange] == nil {
			return nil, missing("exchange", b.ToExchange, v.name)
		}
		return e, nil
	}
	q := v.queues[b.Queue]
	if q == nil {
		return nil, missing("queue", b.Queue, v.name)
	}
	return e, q.access(owner)
}

func (v *VHost) checkBinding(e *Exchange, b Binding) *Error {
	switch e.kind() {
	case "headers":
		m, ok := b.Args["x-match"]
		if s, _ := m.(string); ok && !slices.Contains([]string{"all", "any", "all-with-x", "any-with-x"}, s) {
			return precondition("Invalid x-match field value <<\"%s\">>; expected all, any, all-with-x, or any-with-x", s)
		}
	case "topic":
		n := 0
		for _, w := range words(b.Key) {
			if w == "#" {
				n++
			}
		}
		if v.is(4, 3, 0) && n > 2 {
			return precondition("Topic binding key '%s' uses %d '#' wildcards, at most 2 are allowed", b.Key, n)
		}
	}
	return nil
}

func (e *Exchange) add(b *Binding) {
	e.bindings = append(e.bindings, b)
	switch e.kind() {
	case "direct":
		if e.direct == nil {
			e.direct = map[string][]*Binding{}
		}
		e.direct[b.Key] = append(e.direct[b.Key], b)
	case "topic":
		if e.topic == nil {
			e.topic = map[string][]*Binding{}
		}
		b.pattern = words(b.Key)
		first := firstWord(b.pattern)
		e.topic[first] = append(e.topic[first], b)
	}
}

// firstWord returns the key of a topic pattern in Exchange.topic, which is "" for an initial wildcard and for an empty
// pattern.
func firstWord(pattern []string) string {
	if len(pattern) == 0 || pattern[0] == "*" || pattern[0] == "#" {
		return ""
	}
	return pattern[0]
}

// Unbind removes a binding. It also succeeds if the binding, its exchange or its queue does not exist.
func (v *VHost) Unbind(b Binding, owner any) *Error {
	e, err := v.ends(b, owner)
	switch {
	case err == nil:
		e.removeBindings(b.same)
	case err.Code == amqp.NotFound:
		return nil
	}
	return err
}

func (v *VHost) unbindAll(which func(*Binding) bool) {
	for _, e := range v.exchanges {
		e.removeBindings(which)
	}
}

func (e *Exchange) removeBindings(which func(*Binding) bool) {
	before := len(e.bindings)
	e.bindings = slices.DeleteFunc(e.bindings, which)
	if len(e.bindings) == before {
		return
	}
	for k, l := range e.direct {
		e.direct[k] = slices.DeleteFunc(l, which)
	}
	for k, l := range e.topic {
		e.topic[k] = slices.DeleteFunc(l, which)
	}
	if e.AutoDelete && len(e.bindings) == 0 {
		_ = e.vhost.DeleteExchange(e.Name, false) // never fails, because it is not a system exchange
	}
}

// Bindings returns the bindings from the exchange, oldest first.
func (e *Exchange) Bindings() []*Binding { return e.bindings }
