package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// checkPlaces looks at the nodes on which delay queues live.
func (x *examination) checkPlaces() {
	nodes := len(x.snap.Nodes)
	if nodes == 0 {
		x.notef("the cluster's nodes are not known; it needs the management API and a user with the tag monitoring")
		return
	}
	if !x.snap.NodesComplete {
		x.notef("only those nodes were seen that have queues; a user with the tag monitoring sees all of them")
	}
	var classic, few, part, dead []string
	for _, q := range x.cfg.Want.Queues {
		live, ok := x.snap.Live.Queues[q.Name]
		state, known := x.snap.Queues[q.Name]
		if !ok || !known || !x.ours(q.Name) {
			continue
		}
		online := 0
		for _, m := range state.Members {
			if slices.Contains(state.Online, m) {
				online++
			}
		}
		switch {
		case live.Type == topology.Classic && nodes > 1:
			classic = append(classic, q.Name)
		case live.Type != topology.Quorum || len(state.Members) == 0:
		case online <= len(state.Members)/2:
			dead = append(dead, q.Name)
		case len(state.Members) < min(nodes, 3):
			few = append(few, q.Name)
		case online < len(state.Members):
			part = append(part, q.Name)
		}
	}
	if len(classic) > 0 {
		x.found(Finding{
			ID: "classic-on-cluster", Severity: Warning, Objects: classic,
			What: fmt.Sprintf("%s live on one node of %d: %s.", counted(len(classic), "classic delay queue", "classic delay queues"), nodes, list(classic)),
			Why:  "While that node is down their messages are late; when it is lost they are lost, and so is what was between two queues when it was killed.",
			Mend: "set delay.queue_type: quorum, then " + x.apply() + "   # the classic queues drain beside the new ones",
		})
	}
	if len(dead) > 0 {
		x.found(Finding{
			ID: "quorum-lost", Severity: Critical, Objects: dead,
			What: fmt.Sprintf("%s no majority of replicas: %s.", counted(len(dead), "quorum queue has", "quorum queues have"), list(dead)),
			Why:  "They take and give no messages until a majority of their nodes is back.",
			Mend: "rabbitmqctl cluster_status   # start the nodes that are down",
		})
	}
	if len(few) > 0 {
		x.found(Finding{
			ID: "quorum-members", Severity: Warning, Objects: few,
			What: fmt.Sprintf("%s fewer replicas than the cluster of %d nodes could hold: %s.", counted(len(few), "quorum queue has", "quorum queues have"), nodes, list(few)),
			Why:  "They were created when there were fewer nodes. With fewer than three replicas, the loss of one node stops them.",
			Mend: fmt.Sprintf("rabbitmq-queues grow NODE all --vhost-pattern '^%s$' --queue-pattern '^%s\\.'   # for each node that lacks them", regexpQuote(x.cfg.Vhost), regexpQuote(x.cfg.Prefix)),
		})
	}
	if len(part) > 0 {
		x.found(Finding{
			ID: "quorum-offline", Severity: Warning, Objects: part,
			What: fmt.Sprintf("%s a replica that is down: %s.", counted(len(part), "quorum queue has", "quorum queues have"), list(part)),
			Why:  "The loss of one more node may stop them.",
			Mend: "rabbitmqctl cluster_status   # start the node that is down",
		})
	}
	if nodes > 1 && x.cfg.Plugin == PluginRequired {
		x.found(Finding{
			ID: "plugin-on-cluster", Severity: Warning,
			What: fmt.Sprintf("The plugin delays messages on a cluster of %d nodes.", nodes),
			Why:  "Each message waits on one node only and is not replicated: it is late while that node is down, and lost with it.",
			Mend: "delay.strategy: bucket   # with delay.queue_type: quorum",
		})
	}
}

// leftover is a delay queue that the configuration does not have.
type leftover struct {
	queue    topology.Queue
	messages int64
	tag      string // the layout's, first word of its routing keys; empty if unknown
}

// leftovers are the delay queues of the prefix that are on the broker and not
// described: of an older layout, or of another process's.
func (x *examination) leftovers() []leftover {
	tags := map[string]string{}
	for _, b := range x.snap.Live.Bindings {
		if b.Queue != "" && x.ours(b.Exchange) && b.Exchange != topology.DeliveryExchange(x.cfg.Prefix) {
			tags[b.Queue], _, _ = strings.Cut(b.RoutingKey, ".")
		}
	}
	var out []leftover
	for name, live := range x.snap.Live.Queues {
		if _, wanted := x.want[name]; wanted || !live.ArgumentsKnown {
			continue
		}
		if !strings.HasPrefix(name, x.cfg.Prefix+".bucket.") && !strings.HasPrefix(name, x.cfg.Prefix+".ttl.") {
			continue
		}
		ttl, timed := number(live.Arguments[topology.ArgMessageTTL])
		exchange, dead := live.Arguments[topology.ArgDeadLetterExchange].(string)
		if !timed || !dead {
			continue
		}
		d := time.Duration(ttl) * time.Millisecond
		q := topology.Queue{Name: name, Type: live.Type, MessageTTL: &d, DeadLetter: &topology.DeadLetter{Exchange: exchange}}
		q.DeadLetter.AtLeastOnce = live.Arguments[topology.ArgDeadLetterStrategy] == topology.StrategyAtLeastOnce
		q.Overflow, _ = live.Arguments[topology.ArgOverflow].(string)
		q.Arguments = live.Arguments
		out = append(out, leftover{queue: q, messages: live.Messages, tag: tags[name]})
	}
	slices.SortFunc(out, func(a, b leftover) int { return strings.Compare(a.queue.Name, b.queue.Name) })
	return out
}

func number(v any) (int64, bool) {
	switch n := v.(type) {
	case float64:
		return int64(n), true
	case int64:
		return n, true
	case int32:
		return int64(n), true
	case int:
		return int64(n), true
	}
	return 0, false
}

// checkLeftovers reports queues of older layouts, layout by layout.
func (x *examination) checkLeftovers() {
	var order []string
	byTag := map[string][]leftover{}
	for _, l := range x.left {
		base := x.layoutName(l)
		if byTag[base] == nil {
			order = append(order, base)
		}
		byTag[base] = append(byTag[base], l)
	}
	slices.Sort(order)
	for _, base := range order {
		x.leftoverLayout(base, byTag[base])
	}
}

// layoutName is the beginning that the names of a layout's queues share.
func (x *examination) layoutName(l leftover) string {
	return l.queue.Name[:strings.LastIndexByte(l.queue.Name, '.')]
}

func (x *examination) leftoverLayout(base string, queues []leftover) {
	var names, full []string
	var messages int64
	for _, l := range queues {
		names = append(names, l.queue.Name)
		messages += l.messages
		if l.messages > 0 {
			full = append(full, l.queue.Name)
		}
	}
	if messages == 0 {
		x.found(Finding{
			ID: "leftover-queues", Severity: Warning, Objects: names,
			What: fmt.Sprintf("The layout %s has %s, and this configuration has no such strategy.", base, counted(len(names), "empty delay queue", "empty delay queues")),
			Why:  "They are left over from an older layout, or another process with another configuration uses them. They cost the broker memory, and confuse.",
			Mend: fmt.Sprintf(`%s name | awk '/^%s\.[0-9a-z]+$/' | xargs -n1 %s --if-empty`,
				strings.Replace(x.ctl("list_queues"), " list_queues", " --silent list_queues", 1), regexpQuote(base), x.ctl("delete_queue")+` -q`),
		})
		return
	}
	var unbound []string
	tag := queues[0].tag
	if x.snap.Live.BindingsKnown {
		for _, d := range x.cfg.Want.Destinations {
			if !x.boundFor(tag, d.TargetQueue(x.cfg.Prefix)) {
				unbound = append(unbound, d.TargetQueue(x.cfg.Prefix))
			}
		}
	}
	if len(unbound) == 0 {
		x.notef("%s wait in %s of %s, an older layout or another configuration's; they still arrive, because the destinations are bound for it",
			counted(messages, "message", "messages"), counted(len(full), "queue", "queues"), base)
		return
	}
	x.found(Finding{
		ID: "leftover-unbound", Severity: Critical, Objects: unbound,
		What: fmt.Sprintf("%s wait in the layout of %s, and %s not bound for it: %s.", counted(messages, "message", "messages"), base,
			counted(len(unbound), "destination is", "destinations are"), list(unbound)),
		Why:  "Messages for these destinations will be parked when they are due, instead of arriving.",
		Mend: "set " + previous(tag) + " in the file, then " + x.apply(),
	})
}

var layoutTag = regexp.MustCompile(`^(?:(clock|hex|binary)|r([0-9]+(?:x[0-9]+)*))(?:-([0-9a-z]+))?$`)

// previous is the setting that keeps destinations bound to the layout of a tag.
func previous(tag string) string {
	m := layoutTag.FindStringSubmatch(tag)
	if m == nil { // the ttl strategy's
		return "delay: {strategy: auto, ttl: {delays: [the old ones]}}"
	}
	layout := "layout: " + m[1]
	if m[2] != "" {
		layout = "radices: [" + strings.ReplaceAll(m[2], "x", ", ") + "]"
	}
	if m[3] != "" {
		layout += ", resolution: " + m[3]
	}
	return "delay: {previous: [{" + layout + "}]}"
}

// boundFor tells whether the queue is bound to the delivery exchange for the
// routing keys of a layout.
func (x *examination) boundFor(tag, queue string) bool {
	return slices.ContainsFunc(x.snap.Live.Bindings, func(b topology.Binding) bool {
		first, _, _ := strings.Cut(b.RoutingKey, ".")
		return b.Exchange == topology.DeliveryExchange(x.cfg.Prefix) && b.Queue == queue && first == tag
	})
}

// destinationOf is the described destination that a routing key of the delivery
// exchange ends with, or the key when there is none.
func (x *examination) destinationOf(key string) string {
	name, longest := key, 0
	for _, d := range x.cfg.Want.Destinations {
		end := "." + d.Key(x.cfg.Prefix)
		if len(end) > longest && strings.HasSuffix(key, end) {
			name, longest = cmp.Or(d.Queue, d.Name), len(end)
		}
	}
	return name
}

func (x *examination) checkParked() {
	parked := topology.ParkedQueue(x.cfg.Prefix)
	x.rep.Parked = x.snap.Live.Queues[parked].Messages
	if x.rep.Parked == 0 {
		return
	}
	why := "They were due, and no queue was bound for their destination: it was deleted, was never declared, or its binding is gone. They wait here until somebody moves them."
	if len(x.snap.ParkedSamples) > 0 {
		var dests []string
		for _, p := range x.snap.ParkedSamples {
			d := p.Destination
			if d == "" {
				d = x.destinationOf(p.RoutingKey)
			}
			if !slices.Contains(dests, d) {
				dests = append(dests, d)
			}
		}
		why += fmt.Sprintf(" The first %s for %s.", counted(len(x.snap.ParkedSamples), "is", "are"), list(dests))
	}
	x.found(Finding{
		ID: "parked-messages", Severity: Critical, Objects: []string{parked},
		What: fmt.Sprintf("%s in the queue %s.", counted(x.rep.Parked, "message is", "messages are"), parked),
		Why:  why,
		Mend: "declare the destination (" + x.apply() + "), then move them with a shovel: " +
			x.ctl("set_parameter", "shovel", "unpark", fmt.Sprintf(
				`{"src-protocol":"amqp091","src-uri":"amqp://","src-queue":%q,"src-delete-after":"queue-length","dest-protocol":"amqp091","dest-uri":"amqp://","dest-exchange":%q}`,
				parked, topology.DeliveryExchange(x.cfg.Prefix))),
	})
}
