package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Removal is what Destroy would delete and what it would keep, object by object,
// and whether it would refuse.
type Removal struct {
	Source  string // how the broker was read: "management API" or "AMQP"
	Steps   []RemovalStep
	refusal error
}

// RemovalStep is one object of a Removal.
type RemovalStep struct {
	Kind   Kind
	Name   string // of a binding, its description
	Action Action // Delete, Keep or Gone
	Reason string // why it is kept
	// Layout is the layout whose own the object is; empty for what layouts share,
	// and for what is no layout's at all.
	Layout string
	// Messages and Consumers of a queue, and the messages that the plugin's
	// exchange holds.
	Messages  int64
	Consumers int64

	queue    Queue
	exchange Exchange
	binding  Binding
	part     part
}

// part is how an object belongs to what is destroyed.
type part int

const (
	// ownPart is a layout's alone: its delay queues and the exchanges before and
	// between them.
	ownPart part = iota
	// leadPart binds a destination to the delivery exchange for one layout.
	leadPart
	// sharedPart serves all layouts of a prefix: the delivery exchange, the parked
	// queue, the route queues.
	sharedPart
	// declaredPart is everything else: destinations' queues, and what a file
	// describes of its own.
	declaredPart
)

// Refusal is why Destroy would touch nothing, nil if it would not refuse:
// *NotEmptyError, *ConsumersError, *ConflictError or ErrUnseen, joined.
func (r Removal) Refusal() error { return r.refusal }

// Count is how many objects have the action.
func (r Removal) Count(a Action) int {
	n := 0
	for _, s := range r.Steps {
		if s.Action == a {
			n++
		}
	}
	return n
}

// Empty tells whether there is nothing to delete.
func (r Removal) Empty() bool { return r.Count(Delete) == 0 }

// Messages is how many messages would be deleted with their queues.
func (r Removal) Messages() int64 {
	var n int64
	for _, s := range r.Steps {
		if s.Action == Delete {
			n += s.Messages
		}
	}
	return n
}

// ErrUnseen is why Destroy refuses without an Inspector that reads the
// management API.
var ErrUnseen = errors.New("over AMQP alone it cannot be seen what is unacknowledged or on its way between queues, nor what else uses the layout")

// errHeld is the like of the plugin's exchange.
var errHeld = errors.New("how many messages the x-delayed-message exchange holds cannot be seen")

// ErrConsumers is wrapped by every *ConsumersError.
var ErrConsumers = errors.New("queues have consumers")

// ConsumersError says which of the queues that were to be deleted have consumers.
type ConsumersError struct{ Queues []QueueCount }

func (e *ConsumersError) Error() string {
	parts := make([]string, 0, maxListed+1)
	for i, q := range e.Queues {
		if i == maxListed {
			parts = append(parts, fmt.Sprintf("and %d more queues", len(e.Queues)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("%s %d", q.Queue, q.Consumers))
	}
	return fmt.Sprintf("refused: consumers are attached (%s); stop them first", strings.Join(parts, ", "))
}

// Unwrap makes errors.Is(err, ErrConsumers) true.
func (e *ConsumersError) Unwrap() error { return ErrConsumers }

// remover decides.
type remover struct {
	t      Topology
	live   Live
	opts   DestroyOptions
	tags   map[string]bool   // of the layouts to be destroyed
	unsure map[string]Layout // by tag, those of them that others may use and that nobody named
	others map[string]Layout // layouts that are on the broker beside, by an object's name
	steps  []RemovalStep
	going  map[string]bool // kind and name of what is deleted
}

// planRemoval decides about every object, from what was found. It does no I/O.
func planRemoval(t Topology, live Live, opts DestroyOptions) Removal {
	opts.Prefix = cmp.Or(opts.Prefix, DefaultPrefix)
	x := &remover{t: t, live: live, opts: opts, tags: map[string]bool{}, unsure: map[string]Layout{}, others: map[string]Layout{}, going: map[string]bool{}}
	x.layouts()
	x.bindings()
	for _, q := range t.Queues {
		have, ok := live.Queues[q.Name]
		x.add(RemovalStep{Kind: KindQueue, Name: q.Name, queue: q, Messages: have.Messages, Consumers: have.Consumers}, ok)
	}
	for _, e := range t.Exchanges {
		have, ok := live.Exchanges[e.Name]
		x.add(RemovalStep{Kind: KindExchange, Name: e.Name, exchange: e, Messages: have.Held}, ok)
	}
	// Who keeps one object may keep another by it, until nothing changes any more.
	for changed := true; changed; {
		changed = false
		for i := range x.steps {
			s := &x.steps[i]
			if s.Action != Delete {
				continue
			}
			if s.Reason = x.speaksFor(*s); s.Reason != "" {
				s.Action, changed = Keep, true
				delete(x.going, s.key())
			}
		}
	}
	return Removal{Source: live.Source, Steps: x.steps, refusal: x.refuse()}
}

func (s RemovalStep) key() string { return objectKey(s.Kind, s.Name) }

func objectKey(k Kind, name string) string { return string(k) + "\x00" + name }

// layouts finds out which layouts are to be destroyed, and which others there are.
func (x *remover) layouts() {
	described := map[string]bool{}
	for _, name := range objectNames(x.t.Exchanges, x.t.Queues) {
		described[name] = true
		if l, ok := LayoutOf(x.opts.Prefix, name); ok {
			x.tags[l.Tag] = true
			if l.ambiguous() && !x.named(l, name) {
				x.unsure[l.Tag] = l
			}
		}
	}
	for _, name := range append(sortedKeys(x.live.Exchanges), sortedKeys(x.live.Queues)...) {
		if l, ok := LayoutOf(x.opts.Prefix, name); ok && !described[name] {
			x.others[name] = l
		}
	}
}

func objectNames(exchanges []Exchange, queues []Queue) []string {
	var names []string
	for _, e := range exchanges {
		names = append(names, e.Name)
	}
	for _, q := range queues {
		names = append(names, q.Name)
	}
	return names
}

// add takes an object in, to be deleted unless something speaks for it.
func (x *remover) add(s RemovalStep, there bool) {
	name := s.Name
	if s.Kind == KindBinding {
		name = s.binding.Exchange
	}
	layout, own := LayoutOf(x.opts.Prefix, name)
	switch {
	case own:
		s.part, s.Layout = ownPart, layout.Name
	case s.Kind == KindBinding && name == DeliveryExchange(x.opts.Prefix):
		s.part = leadPart
	case Reserved(x.opts.Prefix, name):
		s.part = sharedPart
	default:
		s.part = declaredPart
	}
	s.Action = Gone
	if there {
		s.Action = Delete
		x.going[s.key()] = true
	}
	x.steps = append(x.steps, s)
}

func (x *remover) bindings() {
	bound, ours := map[string]bool{}, map[string]bool{}
	for _, b := range x.live.Bindings {
		bound[bindingKey(b)] = true
	}
	for _, b := range x.t.Bindings {
		_, there := x.live.Exchanges[b.Exchange]
		if x.live.BindingsKnown {
			there = bound[bindingKey(b)]
		}
		x.add(RemovalStep{Kind: KindBinding, Name: b.String(), binding: b}, there)
		ours[bindingKey(b)] = true
	}
	for _, b := range x.live.Bindings { // clients' second bindings of the same
		plain := b
		plain.Arguments = nil
		if b.Arguments[ArgBinder] != nil && ours[bindingKey(plain)] {
			x.add(RemovalStep{Kind: KindBinding, Name: b.String(), binding: b}, true)
		}
	}
}

// speaksFor is why an object has to stay, empty if nothing is known.
func (x *remover) speaksFor(s RemovalStep) string {
	switch s.part {
	case ownPart:
		if reason := x.mayServe(s); reason != "" {
			return reason
		}
		if s.Kind == KindExchange && !x.opts.Force {
			return x.fed(s.Name)
		}
		return ""
	case leadPart:
		return x.leads(s.binding)
	case sharedPart:
		switch {
		case !x.live.BindingsKnown:
			return unseen
		case len(x.others) > 0:
			return "the layout " + x.others[sortedKeys(x.others)[0]].Name + " is there too"
		case s.Messages > 0:
			return "it holds " + counted(s.Messages, "message")
		case s.Consumers > 0:
			return "it has " + counted(s.Consumers, "consumer")
		}
	case declaredPart:
		switch {
		case !x.opts.Destinations:
			return notOurs
		case !x.live.BindingsKnown && !x.opts.Force:
			return unseen
		}
	}
	switch s.Kind {
	case KindQueue:
		return x.usesQueue(s.Name)
	case KindExchange:
		return x.usesExchange(s.Name)
	}
	if s.part == sharedPart && !x.ends(s.binding) {
		return "what it connects is kept"
	}
	return ""
}

const (
	unseen  = "whether anything else uses it cannot be seen over AMQP"
	notOurs = "it is a destination's or the file's own, not the layout's"
)

// leads is why the binding of a destination has to stay.
func (x *remover) leads(b Binding) string {
	tag := tagOf(b.RoutingKey)
	if !x.tags[tag] {
		return "it belongs to the layout " + tag + ", which is not to be destroyed"
	}
	if !x.live.BindingsKnown {
		return unseen
	}
	for _, name := range sortedKeys(x.others) {
		if l := x.others[name]; l.Tag == tag {
			return "the layout " + l.Name + " uses it too"
		}
	}
	if l, ok := x.unsure[tag]; ok {
		return x.usable(l, l.Name)
	}
	return ""
}

// named tells whether the caller asked for an object of a layout by name.
func (x *remover) named(l Layout, object string) bool {
	return slices.Contains(x.opts.Layouts, l.Name) || slices.Contains(x.opts.Layouts, object)
}

// mayServe is why an object of a layout stays whose name does not tell
// configurations apart.
func (x *remover) mayServe(s RemovalStep) string {
	name := s.Name
	if s.Kind == KindBinding {
		name = s.binding.Exchange
	}
	l, _ := LayoutOf(x.opts.Prefix, name)
	if !l.ambiguous() || x.named(l, name) {
		return ""
	}
	return x.usable(l, name)
}

// usable is which other layout there may use a layout, empty without another.
// What belongs to a layout of that very name is of another configuration too, and
// naming the layout would delete both, so that the object is what to name.
func (x *remover) usable(l Layout, object string) string {
	names := sortedKeys(x.others)
	if len(names) == 0 {
		return ""
	}
	other, name := x.others[names[0]].Name, l.Name
	if slices.ContainsFunc(names, func(n string) bool { return x.others[n].Name == l.Name }) {
		name = object
	}
	if other == l.Name {
		other = names[0]
	}
	return fmt.Sprintf("another layout, %s, is there and may use it; name it with --layout %s to delete it all the same", other, name)
}

// ends tells whether an end of a binding goes, and the binding with it.
func (x *remover) ends(b Binding) bool {
	return x.going[objectKey(KindExchange, b.Exchange)] ||
		b.Queue != "" && x.going[objectKey(KindQueue, b.Queue)] ||
		b.ToExchange != "" && x.going[objectKey(KindExchange, b.ToExchange)]
}

// stays tells whether a binding of the broker stays when an object of its ends
// is left out of account.
func (x *remover) stays(b Binding, other string) bool {
	return !x.going[objectKey(KindBinding, b.String())] && !x.going[other]
}

func (x *remover) usesQueue(name string) string {
	for _, b := range x.live.Bindings {
		if b.Queue == name && x.stays(b, objectKey(KindExchange, b.Exchange)) {
			return fmt.Sprintf("the exchange %s leads to it by the routing key %q", b.Exchange, b.RoutingKey)
		}
	}
	for _, other := range sortedKeys(x.live.Queues) {
		q := x.live.Queues[other]
		exchange, ok := q.Arguments[ArgDeadLetterExchange].(string)
		if ok && exchange == "" && q.Arguments[ArgDeadLetterRoutingKey] == name && !x.going[objectKey(KindQueue, other)] {
			return "the queue " + other + " dead-letters to it"
		}
	}
	// Consumers publish there themselves, whatever arguments their queue has.
	for _, d := range x.t.Destinations {
		_, there := x.live.Queues[d.Queue]
		if there && d.DeadLetterQueue() == name && !x.going[objectKey(KindQueue, d.Queue)] {
			return "the queue " + d.Queue + " dead-letters to it"
		}
	}
	return ""
}

// fed is what leads into an exchange.
func (x *remover) fed(name string) string {
	for _, b := range x.live.Bindings {
		if b.ToExchange == name && x.stays(b, objectKey(KindExchange, b.Exchange)) {
			return "the exchange " + b.Exchange + " leads to it"
		}
	}
	return ""
}

func (x *remover) usesExchange(name string) string {
	for _, b := range x.live.Bindings {
		switch {
		case b.Exchange == name && b.Queue != "" && x.stays(b, objectKey(KindQueue, b.Queue)):
			return "it leads to the queue " + b.Queue
		case b.Exchange == name && b.ToExchange != "" && x.stays(b, objectKey(KindExchange, b.ToExchange)):
			return "it leads to the exchange " + b.ToExchange
		}
	}
	if reason := x.fed(name); reason != "" {
		return reason
	}
	for _, other := range sortedKeys(x.live.Queues) {
		if x.live.Queues[other].Arguments[ArgDeadLetterExchange] == name && !x.going[objectKey(KindQueue, other)] {
			return "the queue " + other + " dead-letters to it"
		}
	}
	for _, other := range sortedKeys(x.live.Exchanges) {
		if x.live.Exchanges[other].Arguments[ArgAlternateExchange] == name && !x.going[objectKey(KindExchange, other)] {
			return "it is the alternate exchange of " + other
		}
	}
	return ""
}

// refuse is why nothing may be touched.
func (x *remover) refuse() error {
	full := &NotEmptyError{Bound: x.opts.Messages}
	busy := &ConsumersError{}
	var total int64
	var errs []error
	for _, s := range x.steps {
		if s.Action != Delete {
			continue
		}
		total += s.Messages
		own := s.part == ownPart
		allowed := x.opts.Force && (own || x.opts.Messages != nil)
		c := QueueCount{Queue: s.Name, Messages: s.Messages, Consumers: s.Consumers, Delay: own}
		if s.Messages > 0 {
			full.add(c, !allowed)
		}
		if s.Consumers > 0 && !allowed {
			busy.Queues = append(busy.Queues, c)
		}
		if s.exchange.Kind == kindDelayed && !x.live.Exchanges[s.Name].HeldKnown && !x.opts.Force {
			errs = append(errs, errHeld)
		}
	}
	if full.refused || x.opts.Messages != nil && total > *x.opts.Messages {
		errs = append(errs, full)
	}
	if len(busy.Queues) > 0 {
		errs = append(errs, busy)
	}
	if !x.live.BindingsKnown && !x.opts.Force && len(x.going) > 0 {
		errs = append(errs, ErrUnseen)
	}
	if !x.opts.Force {
		errs = append(errs, x.conflicts())
	}
	return errors.Join(errs...)
}

// conflicts are the destinations' queues and the file's own objects that are not
// the ones described. The names of delay queues belong to the strategies, however
// they were declared.
func (x *remover) conflicts() error {
	p := Compare(x.t, x.live)
	p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool {
		i := slices.IndexFunc(x.steps, func(r RemovalStep) bool { return r.Kind == s.Kind && r.Name == s.Name })
		return i < 0 || x.steps[i].Action != Delete || x.steps[i].part != declaredPart
	})
	return conflictErrors(p)
}

// kindDelayed is the type of the plugin's exchange.
const kindDelayed = "x-delayed-message"
