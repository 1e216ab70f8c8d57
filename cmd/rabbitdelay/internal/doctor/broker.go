package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func (x *examination) checkVersion() {
	v := x.version
	switch {
	case x.snap.notRabbitMQ():
		x.found(Finding{ID: "not-rabbitmq", Severity: SeverityCritical,
			What: fmt.Sprintf("The broker is %s, not RabbitMQ.", strings.TrimSpace(x.snap.Product+" "+x.snap.Version)),
			Why: "rabbitdelay relies on quorum queues with at-least-once dead-lettering. Another broker may accept the arguments " +
				"of such queues and ignore them. A message may then be lost on its way from one delay queue to the next.",
			Fix: "use RabbitMQ 3.10.2 or later; docs/where-it-runs.md describes what is known about other brokers",
		})
	case !v.Known():
		x.uncheckedf(AreaVersion, "the broker does not report its version (%q); checks that depend on it were skipped", x.snap.Version)
	case v.Before(3, 10, 2):
		x.found(Finding{ID: "broker-too-old", Severity: SeverityCritical,
			What: fmt.Sprintf("RabbitMQ %s is older than 3.10.2.", x.snap.Version),
			Why: "Quorum queues have neither a message TTL nor at-least-once dead-lettering before 3.10, so quorum delay queues do not work; " +
				"before 3.10.2 no TTL may exceed 2^32-1 ms, so the long buckets are refused.",
			Fix: "upgrade RabbitMQ to 3.10.2 or later",
		})
	}
	// quorum means that the configuration relies on at-least-once dead-lettering.
	quorum := slices.ContainsFunc(x.cfg.Want.Queues, atLeastOnce)
	// RabbitMQ 3.10 dead-letters at least once only with this feature flag.
	if v.AtLeast(3, 10, 0) && v.Before(3, 11, 0) && quorum {
		enabled, known := x.snap.Flags["stream_queue"]
		switch {
		case !known:
			x.uncheckedf(AreaFeatureFlags, "the feature flag stream_queue, which RabbitMQ 3.10 needs for at-least-once dead-lettering, could not be read; that needs a user with the administrator tag")
		case !enabled:
			x.found(Finding{ID: "feature-flag-off", Severity: SeverityCritical,
				What: "The feature flag stream_queue is disabled.",
				Why: fmt.Sprintf("RabbitMQ %s then silently dead-letters at most once, regardless of the queues' arguments: "+
					"a message is lost if the next queue cannot accept it.", x.snap.Version),
				// A changed policy makes the queues evaluate their settings again.
				Fix: "rabbitmqctl enable_feature_flag stream_queue && " +
					x.ctl("set_policy", "--apply-to", "queues", "delay-refresh", "^"+regexp.QuoteMeta(x.cfg.Prefix)+`\.`, `{"queue-leader-locator":"balanced"}`) +
					" && " + x.ctl("clear_policy", "delay-refresh"),
			})
		}
	}
	if v.Before(4, 0, 1) {
		x.notef("RabbitMQ %s drops a message that returns to a queue with its old x-death header; rabbitdelay removes this header, and consumers in other languages that republish a received message must do the same", x.snap.Version)
	}
	for _, q := range x.cfg.Want.Queues {
		if v.Before(3, 11, 0) && strings.HasPrefix(q.Name, x.cfg.Prefix+".bucket.binary") {
			x.notef("the binary layout is about six times slower than clock or hex on RabbitMQ %s", x.snap.Version)
			break
		}
	}
	if !quorum && x.cfg.Plugin != PluginRequired {
		x.notef("the delay queues are classic, so messages in transit between two of them are lost if the broker is killed")
	}
}

func (x *examination) checkPlugin() {
	if x.cfg.Plugin == PluginUnused {
		return
	}
	if x.snap.ExchangeTypes == nil {
		x.uncheckedf(AreaPlugin, "the presence of the plugin rabbitmq_delayed_message_exchange could not be checked")
		return
	}
	if slices.Contains(x.snap.ExchangeTypes, "x-delayed-message") {
		x.notef("the plugin keeps each message on one node only, so messages are late while that node is down, and lost if it is lost")
		return
	}
	f := Finding{ID: "plugin-missing", Severity: SeverityCritical,
		What: fmt.Sprintf("RabbitMQ %s does not have the plugin rabbitmq_delayed_message_exchange, which delay.strategy requires.", x.snap.Version),
		Why:  "No message can be delayed with this configuration.",
		Fix:  "rabbitmq-plugins enable rabbitmq_delayed_message_exchange   # where it is installed; or delay.strategy: bucket",
	}
	if x.cfg.Plugin == PluginOptional {
		f.Severity = SeverityWarning
		f.What = fmt.Sprintf("RabbitMQ %s does not have the plugin rabbitmq_delayed_message_exchange, but delay.plugin sets a range of delays for it.", x.snap.Version)
		f.Why = "Delays in that range use the buckets instead. A process that started while the broker had the plugin still uses the plugin."
		f.Fix = "remove delay.plugin from the configuration   # or: rabbitmq-plugins enable rabbitmq_delayed_message_exchange"
	}
	if x.version.AtLeast(4, 3, 0) {
		f.Why += " The plugin cannot run on 4.3 or later, because it needs Mnesia."
		if x.cfg.Plugin == PluginRequired {
			f.Fix = "delay.strategy: bucket   # any delay, without a plugin"
		} else {
			f.Fix = "remove delay.plugin from the configuration"
		}
	}
	x.found(f)
}

// checkInstants checks that the broker can delay messages until a given time. Each client of the native strategy makes
// the same check itself.
func (x *examination) checkInstants() {
	if !x.cfg.WantsInstants() {
		return
	}
	if !x.snap.Live.BindingsKnown {
		x.notef("AMQP does not count messages that wait for their due time, so the counts of the native strategy's queues do not include them")
	}
	if x.snap.Instants == nil || *x.snap.Instants {
		return
	}
	x.found(Finding{ID: "instants-ignored", Severity: SeverityCritical,
		What: fmt.Sprintf("RabbitMQ %s ignores the header %s, which the native strategy needs.", x.snap.Version, topology.HeaderInstant),
		Why:  "Clients detect this when they connect, and send nothing, because every message would be delivered immediately.",
		Fix:  "delay.strategy: bucket   # any delay, on every broker; or upgrade all nodes to RabbitMQ 4.4 or later",
	})
}

func (x *examination) checkNodes() {
	var down, split []string
	for _, n := range x.snap.Nodes {
		if x.snap.NodesComplete && !n.Running {
			down = append(down, n.Name)
		}
		if len(n.Partitions) > 0 {
			split = append(split, n.Name)
		}
	}
	x.about(split, Finding{ID: "network-partition", Severity: SeverityCritical,
		What: "The cluster is partitioned: " + list(split) + " lost contact with other nodes.",
		Why:  "Both sides may change the same queues and bindings. When they are joined again, the messages of one side are dropped.",
		Fix:  "rabbitmqctl cluster_status   # let consumers empty the classic queues of the smaller side before its nodes are restarted (stop_app, start_app)",
	})
	if len(down) > 0 {
		x.found(Finding{ID: "node-down", Severity: SeverityWarning,
			What: "Nodes of the cluster are down: " + list(down) + ".",
			Why:  "Their classic queues and plugin messages are unavailable, and quorum queues tolerate one failure fewer.",
			Fix:  "rabbitmqctl -n " + down[0] + " start_app   # or start the node itself; its messages are then available again", Objects: down,
		})
	}
}

const blocksAll = "No node of the cluster accepts messages: Send waits until its deadline, and retries and dead letters wait too."

func (x *examination) checkAlarms() {
	nodes := map[string][]string{}
	for _, a := range x.snap.Alarms {
		nodes[a.Resource] = append(nodes[a.Resource], a.Node)
	}
	for _, resource := range slices.Sorted(maps.Keys(nodes)) {
		id, why, fix := "alarm-other", "The node is short of this resource.", "rabbitmq-diagnostics alarms   # shows the alarm, which ends when the node has enough of the resource again"
		switch resource {
		case AlarmMemory:
			id, why, fix = "alarm-memory", blocksAll, "rabbitmqctl set_vm_memory_high_watermark 0.6   # but first find out with rabbitmq-diagnostics memory_breakdown what uses the memory"
		case AlarmDisk:
			id, why, fix = "alarm-disk", blocksAll, "df -h $(rabbitmqctl eval 'rabbit:data_dir().' | tr -d '\"')   # then free some space, or change the limit: rabbitmqctl set_disk_free_limit mem_relative 1.0"
		}
		x.about(nodes[resource], Finding{ID: id, Severity: SeverityCritical,
			What: fmt.Sprintf("The %s alarm is in effect on %s.", resource, list(nodes[resource])),
			Why:  why, Fix: fix,
		})
	}
	if len(x.snap.Alarms) == 0 && x.snap.Blocked != "" {
		x.found(Finding{ID: "connection-blocked", Severity: SeverityCritical,
			What: fmt.Sprintf("The broker blocks connections that publish: %q.", x.snap.Blocked),
			Why:  blocksAll,
			Fix:  "rabbitmq-diagnostics alarms   # shows which node is short of which resource",
		})
	}
	blocked := x.snap.BlockedConnections
	x.about(blocked, Finding{ID: "connections-blocked", Severity: SeverityWarning,
		What: fmt.Sprintf("%s blocked: %s.", shown.Count(len(blocked), "connection is", "connections are"), list(blocked)),
		Why:  "Messages sent on them wait, and fail at their deadlines.",
		Fix:  "rabbitmq-diagnostics alarms   # the connections continue automatically when the alarm ends",
	})
}

// checkSettings checks the names of the nodes' configuration files, which is all that the management API shows of a
// node's settings. The setting dead_letter_worker_publisher_confirm_timeout can only be in advanced.config.
func (x *examination) checkSettings() {
	if !slices.ContainsFunc(x.cfg.Want.Queues, atLeastOnce) {
		return
	}
	var without []string
	for _, n := range x.snap.Nodes {
		if n.withoutAdvanced() {
			without = append(without, n.Name)
		}
	}
	if len(without) > 0 {
		x.notef("no advanced.config on %s, so dead_letter_worker_publisher_confirm_timeout probably has its default of 3 minutes: messages that become due around a restart may be late by that much, but are not lost; docs/advanced.config has the setting, and docs/rabbitmq.conf has other recommended settings, which the doctor cannot check",
			list(without))
	}
}

func atLeastOnce(q topology.Queue) bool { return q.DeadLetter != nil && q.DeadLetter.AtLeastOnce }
