package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// unavailable reports whether a queue does not answer, or has no majority of its replicas online.
func (x *examination) unavailable(name string) bool {
	q := x.snap.Live.Queues[name]
	online := 0
	for _, m := range q.Members {
		if slices.Contains(q.Online, m) {
			online++
		}
	}
	return q.Unavailable != "" || q.Type == topology.Quorum && len(q.Members) > 0 && online <= len(q.Members)/2
}

// noProcess reports whether a quorum queue's process is gone although its nodes are up. There are two signs: the broker
// answered noproc when it was asked for a message, or it lists no replica as online although all nodes with replicas
// are running.
func (x *examination) noProcess(q plan.Queue) bool {
	running := func(member string) bool {
		return slices.ContainsFunc(x.snap.Nodes, func(n Node) bool { return n.Name == member && n.Running })
	}
	down := len(q.Members) > 0 && len(q.Online) == 0 && !slices.ContainsFunc(q.Members, func(m string) bool { return !running(m) })
	return down || strings.Contains(q.Unavailable, "noproc")
}

// server returns the name of a quorum queue's process as an Erlang term.
func (x *examination) server(queue string) string {
	vhost := x.cfg.Vhost
	if vhost == "/" {
		vhost = "%2F"
	}
	return fmt.Sprintf("{list_to_atom(%q), node()}", vhost+"_"+queue)
}

// checkAvailable reports all queues of the virtual host that do not answer, including those of other applications.
// Other findings about these queues, or about messages that should pass through them, are consequences of this.
func (x *examination) checkAvailable() {
	var leaderless, down, gone []string
	for _, name := range slices.Sorted(maps.Keys(x.snap.Live.Queues)) {
		switch {
		case !x.unavailable(name):
		case x.snap.Live.Queues[name].Type == topology.Classic:
			down = append(down, name)
		case x.noProcess(x.snap.Live.Queues[name]):
			gone = append(gone, name)
		default:
			leaderless = append(leaderless, name)
		}
	}
	x.about(leaderless, Finding{ID: "quorum-lost", Severity: SeverityCritical,
		What: fmt.Sprintf("%s no leader: %s.", shown.Count(len(leaderless), "queue has", "queues have"), list(leaderless)),
		Why:  "Without a majority of their replicas they neither accept nor deliver messages, and the number of their messages is unknown. No message in them is lost.",
		Fix:  "rabbitmqctl cluster_status   # start the nodes that are down",
	})
	if len(gone) > 0 {
		x.about(gone, Finding{ID: "queue-process-gone", Severity: SeverityCritical,
			What: fmt.Sprintf("%s no process: %s.", shown.Count(len(gone), "queue has", "queues have"), list(gone)),
			Why: "Their nodes are up and the queues are listed, but the queues neither accept nor deliver messages, and the number of their messages is unknown. " +
				"No message in them is lost. Other tools may show them as running and empty.",
			Fix: fmt.Sprintf("rabbitmqctl eval %s   # on the queue's node, for each queue; or restart the node",
				shellQuote("ra:restart_server(quorum_queues, "+x.server(gone[0])+").")),
		})
	}
	x.about(down, Finding{ID: "queue-down", Severity: SeverityCritical,
		What: fmt.Sprintf("%s down: %s.", shown.Count(len(down), "classic queue is", "classic queues are"), list(down)),
		Why:  "A classic queue is on one node. Until that node is back, the queue neither accepts nor delivers messages, and the number of its messages is unknown.",
		Fix:  "rabbitmqctl cluster_status   # start the nodes that are down",
	})
	if all := x.snap.Live.Unavailable(); len(all) > 0 {
		x.uncheckedf(AreaMessages, "%s, so the number of their messages is unknown: %s", shown.Count(len(all), "queue does not answer", "queues do not answer"), list(all))
	}
}

func (x *examination) checkPlaces() {
	nodes := len(x.snap.Nodes)
	if nodes == 0 {
		x.uncheckedf(AreaNodes, "the cluster's nodes are unknown; listing them needs the management API and a user with the monitoring tag")
		return
	}
	if !x.snap.NodesComplete {
		x.uncheckedf(AreaNodes, "only nodes with queues and the connections of this user were seen; a user with the monitoring tag sees all nodes and connections")
	}
	var classic, few, part []string
	for _, q := range x.cfg.Want.Queues {
		live, ok := x.snap.Live.Queues[q.Name]
		if !ok || !x.ours(q.Name) {
			continue
		}
		switch {
		case live.Type == topology.Classic && nodes > 1:
			classic = append(classic, q.Name)
		case live.Type != topology.Quorum || len(live.Members) == 0:
		case x.unavailable(q.Name):
		case len(live.Members) < min(nodes, 3):
			few = append(few, q.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.snap.Live.Queues)) { // other applications' queues too
		live := x.snap.Live.Queues[name]
		down := slices.ContainsFunc(live.Members, func(m string) bool { return !slices.Contains(live.Online, m) })
		if down && len(live.Online) > 0 && live.Type == topology.Quorum && !x.unavailable(name) && !slices.Contains(few, name) {
			part = append(part, name)
		}
	}
	x.about(classic, Finding{ID: "classic-on-cluster", Severity: SeverityWarning,
		What: fmt.Sprintf("%s on only one of %d nodes: %s.", shown.Count(len(classic), "classic delay queue is", "classic delay queues are"), nodes, list(classic)),
		Why:  "While that node is down, their messages are late. If it is lost, the messages are lost too. If it is killed, messages in transit between two queues are lost.",
		Fix:  "set delay.queue_type: quorum, and list destination queues that stay classic under queues, then " + x.run("apply") + "   # the classic delay queues drain alongside the new ones",
	})
	x.about(few, Finding{ID: "quorum-members", Severity: SeverityWarning,
		What: fmt.Sprintf("%s fewer replicas than the cluster of %d nodes could hold: %s.", shown.Count(len(few), "quorum queue has", "quorum queues have"), nodes, list(few)),
		Why:  "They were created when there were fewer nodes. With fewer than three replicas, the loss of one node stops them.",
		Fix:  fmt.Sprintf("rabbitmq-queues grow NODE all --vhost-pattern '^%s$' --queue-pattern '^%s\\.'   # for each node that lacks them", regexp.QuoteMeta(x.cfg.Vhost), regexp.QuoteMeta(x.cfg.Prefix)),
	})
	x.about(part, Finding{ID: "quorum-offline", Severity: SeverityWarning,
		What: fmt.Sprintf("%s a replica that is down: %s.", shown.Count(len(part), "quorum queue has", "quorum queues have"), list(part)),
		Why:  "The loss of one more node may stop them.",
		Fix:  "rabbitmqctl cluster_status   # start the node that is down",
	})
	if nodes > 1 && x.cfg.Plugin == PluginRequired {
		x.found(Finding{ID: "plugin-on-cluster", Severity: SeverityWarning,
			What: fmt.Sprintf("The plugin delays messages on a cluster of %d nodes.", nodes),
			Why:  "Each message waits on one node only and is not replicated. It is late while that node is down, and lost if the node is lost.",
			Fix:  "delay.strategy: bucket   # with delay.queue_type: quorum; messages in the plugin still arrive as long as it stays enabled",
		})
	}
}

func (x *examination) checkParked() {
	parked := topology.ParkedQueue(x.cfg.Prefix)
	q := x.snap.Live.Queues[parked]
	if q.Messages > 0 || !q.Unknown() {
		x.rep.Parked = &q.Messages
	}
	if q.Messages == 0 {
		return
	}
	why := "When they were due, no queue was bound for their destination: the queue was deleted or never declared, or its binding is gone. They stay here until someone requeues them."
	if len(x.snap.ParkedSamples) > 0 {
		var dests []string
		for _, p := range x.snap.ParkedSamples {
			d, longest := cmp.Or(p.Destination, p.RoutingKey), 0
			for _, described := range x.cfg.Want.Destinations { // the destination whose key is the end of the message's routing key
				end := "." + described.Key(x.cfg.Prefix)
				if p.Destination == "" && len(end) > longest && strings.HasSuffix(p.RoutingKey, end) {
					d, longest = cmp.Or(described.Queue, described.Name), len(end)
				}
			}
			if !slices.Contains(dests, d) {
				dests = append(dests, d)
			}
		}
		why += fmt.Sprintf(" The first %s for %s.", shown.Count(len(x.snap.ParkedSamples), "is", "are"), list(dests))
	}
	x.found(Finding{ID: "parked-messages", Severity: SeverityCritical, Objects: []string{parked},
		What: fmt.Sprintf("%s in the queue %s.", shown.Count(q.Messages, "message is", "messages are"), parked),
		Why:  why, Fix: "declare the destination (" + x.run("apply") + "), then send the messages to it: " + x.run("requeue --parked"),
	})
}
