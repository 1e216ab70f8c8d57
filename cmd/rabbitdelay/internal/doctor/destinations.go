package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// destinationQueues returns the queues to which messages are delivered: the configured ones, and those that are bound
// to the delivery exchange.
func (x *examination) destinationQueues() []string {
	var names []string
	for _, d := range x.cfg.Want.Destinations {
		if !d.ToExchange() {
			names = append(names, d.Queue)
		}
	}
	names = append(names, x.snap.Live.Delivered(x.cfg.Want)...)
	slices.Sort(names)
	return slices.Compact(names)
}

func (x *examination) checkDestinations() {
	unknown := 0
	for _, name := range x.queues {
		q, ok := x.snap.Live.Queues[name]
		if !ok {
			continue // another finding reports it as missing
		}
		x.checkConsumers(name, q)
		if !q.ArgumentsKnown {
			unknown++
			continue
		}
		x.checkConsumerTimeout(name, q)
		x.checkDeliveryLimit(name, q)
		x.checkDrops(name, q)
		x.checkUnhandled(name, q)
		x.checkRefuses(name, q)
	}
	if unknown > 0 {
		x.uncheckedf(AreaArguments, "the arguments of %s (delivery limit, dead-letter exchange, consumer timeout) are unknown, because reading them needs the management API", shown.Count(unknown, "destination queue", "destination queues"))
	}
}

func (x *examination) checkConsumers(name string, q plan.Queue) {
	switch waiting := q.Ready(); {
	case q.Consumers == 0 && q.Messages > 0:
		x.found(Finding{ID: "destination-unconsumed", Severity: SeverityWarning, Objects: []string{name},
			What: fmt.Sprintf("%s in the destination queue %s, which has no consumer.", shown.Count(q.Messages, "message waits", "messages wait"), name),
			Why:  "They arrived on time, but nothing consumes them.",
			Fix:  "start the service that consumes " + name + "   # the messages wait until then",
		})
	case waiting > x.cfg.Backlog:
		x.found(Finding{ID: "destination-backlog", Severity: SeverityWarning, Objects: []string{name},
			What: fmt.Sprintf("%s in the destination queue %s, more than %s.", shown.Count(waiting, "message waits", "messages wait"), name, shown.Number(x.cfg.Backlog)),
			Why:  "Its consumers do not keep up, so each message is delayed by the messages before it.",
			Fix:  fmt.Sprintf("start more consumers of %s, or raise their concurrency (WithConcurrency); the queue has %s now", name, shown.Count(q.Consumers, "consumer", "consumers")),
		})
	}
}

func (x *examination) checkConsumerTimeout(name string, q plan.Queue) {
	ms, ok := lower(q.Arguments["x-consumer-timeout"], q.EffectivePolicy["consumer-timeout"])
	timeout := time.Duration(ms) * time.Millisecond
	if !ok || timeout >= x.cfg.MinConsumerTimeout || x.version.Before(3, 12, 0) { // older brokers have no timeout per queue
		return
	}
	x.found(Finding{ID: "destination-consumer-timeout", Severity: SeverityWarning, Objects: []string{name},
		What: fmt.Sprintf("Consumers of %s must acknowledge a message within %s.", name, topology.FormatDuration(timeout)),
		Why:  "The broker closes the channel of a consumer that takes longer. All its unacknowledged messages are then delivered again, and slow handlers never finish.",
		Fix:  x.ownPolicy(name, q, map[string]any{"consumer-timeout": 1_800_000}) + "   # if the timeout is an argument of the queue, create a new queue instead",
	})
}

// ownPolicy returns the command that gives a queue its own policy. Only one policy applies to a queue, so the new one
// includes the settings of the current one.
func (x *examination) ownPolicy(queue string, q plan.Queue, settings map[string]any) string {
	definition, priority := map[string]any{}, 0
	for _, p := range x.snap.Live.Policies {
		if p.Name == q.Policy && !p.Operator {
			maps.Copy(definition, p.Definition)
			priority = p.Priority + 1
		}
	}
	maps.Copy(definition, settings)
	text, err := json.Marshal(definition)
	if err != nil {
		return x.ctl("list_policies") // cannot happen for values that were decoded from JSON
	}
	return x.ctl("set_policy", "--priority", strconv.Itoa(priority), "--apply-to", "queues", "rabbitdelay-"+queue, "^"+regexp.QuoteMeta(queue)+"$", string(text))
}

// lower returns the lower of an argument and a policy's value, because the broker applies the lower one.
func lower(own, policy any) (int64, bool) {
	a, okA := argument.Integer(own)
	p, okP := argument.Integer(policy)
	switch {
	case okA && okP:
		return min(a, p), true
	case okP:
		return p, true
	}
	return a, okA
}

// deadLetterExchange reports whether an argument or a policy gives the queue a dead-letter exchange.
func deadLetterExchange(q plan.Queue) bool {
	_, own := q.Arguments[argument.DeadLetterExchange]
	_, policy := q.EffectivePolicy["dead-letter-exchange"]
	return own || policy
}

// safeLimit is the lowest delivery limit with which messages that a consumer holds are safe before RabbitMQ 4.3.
const safeLimit = 3

func (x *examination) checkDeliveryLimit(name string, q plan.Queue) {
	limit, byDefault := q.DeliveryLimit(x.version)
	if limit < 0 || deadLetterExchange(q) {
		return
	}
	origin := ""
	if byDefault {
		origin = ", RabbitMQ's default since 4.0"
	}
	d := topology.Destination{Queue: name}
	if i := slices.IndexFunc(x.cfg.Want.Destinations, func(d topology.Destination) bool { return d.Queue == name }); i >= 0 {
		d = x.cfg.Want.Destinations[i]
	}
	dead, first := d.DeadLetterQueue(), ""
	if _, there := x.snap.Live.Queues[dead]; !there {
		first = "   # but first add " + dead + " under queues, and run " + x.run("apply")
	}
	why := "A delivery counts if it ends without an acknowledgement, because the consumer died or returned the message. A consumer that crashes in a loop loses its messages."
	if limit < safeLimit && x.version.Known() && x.version.Before(4, 3, 0) {
		why += " With a limit this low, a consumer that only holds messages until they are due (a lead) can lose them when its connection is lost twice in a short time."
	}
	x.found(Finding{ID: "destination-delivery-limit", Severity: SeverityWarning, Objects: []string{name},
		What: fmt.Sprintf("The destination queue %s drops a message after %s%s, and has no dead-letter exchange.", name, shown.Count(limit, "delivery", "deliveries"), origin),
		Why:  why,
		Fix:  x.ownPolicy(name, q, map[string]any{"dead-letter-exchange": "", "dead-letter-routing-key": dead}) + first,
	})
}

// checkDeadLetters reports messages that a handler or the broker has dead-lettered.
func (x *examination) checkDeadLetters() {
	var names, counts, moves []string
	for _, kept := range x.snap.Live.Kept(x.cfg.Want) {
		dead := kept.Name
		q := x.snap.Live.Queues[dead]
		if q.Messages == 0 || dead == topology.ParkedQueue(x.cfg.Prefix) {
			continue
		}
		if q.Consumers > 0 {
			x.notef("%s in %s, which has %s", shown.Count(q.Messages, "dead letter is", "dead letters are"), dead, shown.Count(q.Consumers, "consumer", "consumers"))
			continue
		}
		names = append(names, dead)
		counts = append(counts, shown.Number(q.Messages)+" in "+dead)
		moves = append(moves, x.run("requeue --queue "+shellQuote(dead)))
	}
	if len(names) == 0 {
		return
	}
	fix := "fix the cause, then send them back: " + moves[0]
	if len(moves) > 1 {
		fix += fmt.Sprintf("; and the same for the other %d", len(moves)-1)
	}
	x.found(Finding{ID: "dead-letters", Severity: SeverityWarning, Objects: names,
		What: "Dead letters are waiting: " + strings.Join(counts, ", ") + ".",
		Why:  "Handlers or the broker gave up on them. Their headers rabbitdelay-reason and rabbitdelay-error contain the reason. They stay until someone requeues or discards them.",
		Fix:  fix,
	})
}

// overflow returns a queue's overflow behaviour. If both an argument and a policy set it, a classic queue uses the
// argument, and a quorum queue uses the policy.
func overflow(q plan.Queue) string {
	own, _ := q.Arguments[argument.Overflow].(string)
	policy, _ := q.EffectivePolicy["overflow"].(string)
	if q.Type == topology.Classic {
		return cmp.Or(own, policy)
	}
	return cmp.Or(policy, own)
}

func (x *examination) checkDrops(name string, q plan.Queue) {
	var limits []string
	report := func(format string, args ...any) { limits = append(limits, fmt.Sprintf(format, args...)) }
	if ms, ok := lower(q.Arguments[argument.Expires], q.EffectivePolicy["expires"]); ok {
		report("the queue itself is deleted after %s without use", topology.FormatDuration(time.Duration(ms)*time.Millisecond))
	}
	if o := q.EffectivePolicy["overflow"]; q.Type == topology.Quorum && q.Arguments[argument.DeadLetterStrategy] == argument.AtLeastOnce && o != nil && o != argument.RejectPublish {
		report("dead letters may be lost in transit, because overflow %v disables at-least-once dead-lettering", o)
	}
	if !deadLetterExchange(q) {
		if ms, ok := lower(q.Arguments[argument.MessageTTL], q.EffectivePolicy["message-ttl"]); ok {
			report("messages older than %s are dropped", topology.FormatDuration(time.Duration(ms)*time.Millisecond))
		}
		if o := overflow(q); o == "" || o == argument.DropHead {
			if n, ok := lower(q.Arguments[argument.MaxLength], q.EffectivePolicy["max-length"]); ok {
				report("if it has more than %s messages, the oldest are dropped", shown.Number(n))
			}
			if n, ok := lower(q.Arguments[argument.MaxLengthBytes], q.EffectivePolicy["max-length-bytes"]); ok {
				report("if it has more than %s bytes, the oldest messages are dropped", shown.Number(n))
			}
		}
	}
	if len(limits) == 0 {
		return
	}
	fix := "give the destination a queue with another name and without these arguments   # and let the old queue drain"
	if q.Policy != "" || q.OperatorPolicy != "" {
		fix = x.ctl("list_policies") + "; " + x.ctl("list_operator_policies") + "   # then narrow the pattern of the matching policy"
	}
	x.found(Finding{ID: "destination-drops", Severity: SeverityWarning, Objects: []string{name},
		What: fmt.Sprintf("The destination queue %s drops messages: %s.", name, strings.Join(limits, "; ")),
		Why:  "Nothing reports a message that is lost in this way.", Fix: fix,
	})
}

// checkUnhandled reports policies by which the broker dead-letters messages that no handler has received. If the
// queue's own arguments cause this, it is intended.
func (x *examination) checkUnhandled(name string, q plan.Queue) {
	if !deadLetterExchange(q) {
		return // checkDrops and checkDeliveryLimit report it
	}
	byPolicy := func(own, policy string) (int64, bool) {
		n, ok := argument.Integer(q.EffectivePolicy[policy])
		a, set := argument.Integer(q.Arguments[own])
		return n, ok && n >= 0 && (!set || a < 0 || n < a)
	}
	var limits []string
	report := func(format string, args ...any) { limits = append(limits, fmt.Sprintf(format, args...)) }
	if ms, ok := byPolicy(argument.MessageTTL, "message-ttl"); ok {
		report("messages that have waited for %s", topology.FormatDuration(time.Duration(ms)*time.Millisecond))
	}
	if o := overflow(q); o == "" || o == argument.DropHead {
		if n, ok := byPolicy(argument.MaxLength, "max-length"); ok {
			report("the oldest messages if it has more than %s", shown.Number(n))
		}
		if n, ok := byPolicy(argument.MaxLengthBytes, "max-length-bytes"); ok {
			report("the oldest messages if it has more than %s bytes", shown.Number(n))
		}
	}
	if n, ok := byPolicy(argument.DeliveryLimit, "delivery-limit"); ok && n < safeLimit && q.Type == topology.Quorum && x.version.Known() && x.version.Before(4, 3, 0) {
		report("messages that consumers have returned more than %s, even if they only held them until they were due", shown.Count(n, "time", "times"))
	}
	if len(limits) == 0 {
		return
	}
	x.found(Finding{ID: "destination-unhandled", Severity: SeverityWarning, Objects: []string{name},
		What: fmt.Sprintf("A policy dead-letters messages in the destination queue %s that no handler has received: %s.", name, strings.Join(limits, "; ")),
		Why:  "They arrived on time, but their effect is missing until someone requeues them from the dead-letter queue.",
		Fix:  x.ctl("list_policies") + "; " + x.ctl("list_operator_policies") + "   # then narrow the pattern of the matching policy",
	})
}

func (x *examination) checkRoutes() {
	for _, r := range x.snap.Live.Routes(x.cfg.Prefix, x.cfg.Want) {
		queue, d := r.Queue, r.Destination
		waiting := x.snap.Live.Queues[queue].Messages
		if waiting == 0 {
			continue
		}
		x.found(Finding{ID: "route-stuck", Severity: SeverityCritical, Objects: []string{queue},
			What: fmt.Sprintf("%s for the exchange %s with the routing key %q.", shown.Count(waiting, "message waits", "messages wait"), d.Exchange, d.RoutingKey),
			Why:  fmt.Sprintf("The exchange has no route for them. They stay in %s, and the broker tries again every few minutes; nothing is lost.", queue),
			Fix:  fmt.Sprintf("rabbitmqadmin -V %s declare binding source=%s destination=QUEUE routing_key=%s", shellQuote(x.cfg.Vhost), shellQuote(d.Exchange), shellQuote(d.RoutingKey)),
		})
	}
}

// checkRefuses reports a destination queue that rejects messages from the delay queues. A delay queue has at most 32
// dead letters in transit, and stops dead-lettering when none of them is confirmed.
func (x *examination) checkRefuses(name string, q plan.Queue) {
	most, full := bound(q)
	var what, fix string
	switch {
	case slices.Contains([]string{"down", "minority", "stopped", "crashed"}, q.State):
		what, full = "accepts no messages, because its state is "+q.State, true
		fix = "rabbitmqctl cluster_status   # start the nodes that are down"
	case most == "":
		return
	default:
		what = "refuses more than " + most
		fix = fmt.Sprintf("%s; %s   # remove the limit from the policy; if the limit is an argument, use a queue with another name. Or send through an exchange (exchange: amq.direct, routing_key: %s), so that only its route queue has to wait: rabbitmqadmin -V %s declare binding source=amq.direct destination=%s routing_key=%[3]s",
			x.ctl("list_policies"), x.ctl("list_operator_policies"), shellQuote(name), shellQuote(x.cfg.Vhost), shellQuote(name))
	}
	severity, waiting := SeverityWarning, int64(0)
	for other, q := range x.snap.Live.Queues {
		if _, delays := naming.DelaysOf(x.cfg.Prefix, other); delays {
			waiting += q.Leaving
		}
	}
	if full && waiting > 0 {
		severity = SeverityCritical
		what += "; " + shown.Count(waiting, "message that is due waits", "messages that are due wait") + " in delay queues"
	}
	x.found(Finding{ID: "destination-refuses", Severity: severity, Objects: []string{name},
		What: fmt.Sprintf("The destination queue %s %s.", name, what),
		Why:  "After 32 refused messages a quorum delay queue stops delivering to all destinations; a classic delay queue loses the refused messages.",
		Fix:  fix,
	})
}

// bound describes the length at which a queue refuses messages, if it has such a limit, and reports whether the queue
// has reached it. A quorum queue that was full refuses messages until it has shrunk to four fifths of the limit.
func bound(q plan.Queue) (most string, full bool) {
	if !strings.HasPrefix(overflow(q), argument.RejectPublish) { // the other value is reject-publish-dlx
		return "", false
	}
	if n, ok := lower(q.Arguments[argument.MaxLength], q.EffectivePolicy["max-length"]); ok {
		most, full = shown.Count(n, "message", "messages"), q.Ready()*5 >= n*4
	}
	if n, ok := lower(q.Arguments[argument.MaxLengthBytes], q.EffectivePolicy["max-length-bytes"]); ok {
		most = strings.TrimPrefix(most+" or "+shown.Count(n, "byte", "bytes"), " or ")
		full = full || q.ReadyBytes*5 >= n*4
	}
	return most, full
}

// checkRouteCount reports too many route queues. If routing keys contain a variable part, such as an order number, each
// value needs its own route queue.
func (x *examination) checkRouteCount() {
	var names []string
	for name := range x.snap.Live.Queues {
		if naming.RouteQueue(x.cfg.Prefix, name) {
			names = append(names, name)
		}
	}
	if len(names) <= x.cfg.MaxRouteQueues {
		return
	}
	slices.Sort(names)
	x.found(Finding{ID: "route-queues", Severity: SeverityWarning, Objects: names,
		What: fmt.Sprintf("There are %d route queues, more than %d: %s.", len(names), x.cfg.MaxRouteQueues, list(names)),
		Why:  "Each routing key of an exchange destination has its own quorum queue, which is never deleted. Thousands of them cost the broker memory and time.",
		Fix:  "send to one queue that is bound to the exchange with a pattern, or whose consumer republishes the messages, and delete unused empty route queues; or raise broker.max_route_queues if that many are intended",
	})
}
