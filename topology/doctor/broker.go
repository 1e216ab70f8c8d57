package doctor

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func (x *examination) checkVersion() {
	v := x.version
	switch {
	case !v.Known():
		x.unseenf(AreaVersion, "the broker does not report its version (%q); checks that depend on it were skipped", x.snap.Version)
	case v.Before(3, 10, 2):
		x.found(Finding{ID: "broker-too-old", Severity: SeverityCritical,
			What: fmt.Sprintf("RabbitMQ %s is older than 3.10.2.", x.snap.Version),
			Why: "Quorum queues have neither a message TTL nor at-least-once dead-lettering before 3.10, so quorum delay queues do not work; " +
				"before 3.10.2 no TTL may exceed 2^32-1 ms, so the long buckets are refused.",
			Mend: "upgrade RabbitMQ to 3.10.2 or later",
		})
	}
	// quorum means that the configuration relies on at-least-once dead-lettering.
	quorum := slices.ContainsFunc(x.cfg.Want.Queues, atLeastOnce)
	// RabbitMQ 3.10 dead-letters at least once only with this feature flag.
	if v.AtLeast(3, 10, 0) && v.Before(3, 11, 0) && quorum {
		enabled, known := x.snap.Flags["stream_queue"]
		switch {
		case !known:
			x.unseenf(AreaFeatureFlags, "the feature flag stream_queue, which RabbitMQ 3.10 needs for at-least-once dead-lettering, could not be read; that needs a user with the tag administrator")
		case !enabled:
			x.found(Finding{ID: "feature-flag-off", Severity: SeverityCritical,
				What: "The feature flag stream_queue is disabled.",
				Why: fmt.Sprintf("RabbitMQ %s then silently dead-letters at most once, whatever the queues' arguments: "+
					"a message is lost when a queue cannot take it over.", x.snap.Version),
				// A changed policy makes the queues evaluate their settings again.
				Mend: "rabbitmqctl enable_feature_flag stream_queue && " +
					x.ctl("set_policy", "--apply-to", "queues", "delay-refresh", "^"+regexp.QuoteMeta(x.cfg.Prefix)+`\.`, `{"queue-leader-locator":"balanced"}`) +
					" && " + x.ctl("clear_policy", "delay-refresh"),
			})
		}
	}
	if v.Before(4, 0, 1) {
		x.notef("RabbitMQ %s drops a message that comes back to a queue with its old x-death header; rabbitdelay leaves it out, and so must consumers in other languages that publish a received message again", x.snap.Version)
	}
	for _, q := range x.cfg.Want.Queues {
		if v.Before(3, 11, 0) && strings.HasPrefix(q.Name, x.cfg.Prefix+".bucket.binary") {
			x.notef("the binary layout is about six times slower than clock or hex on RabbitMQ %s", x.snap.Version)
			break
		}
	}
	if !quorum && x.cfg.Plugin != PluginRequired {
		x.notef("the delay queues are classic: messages between two of them are lost when the broker is killed")
	}
}

func (x *examination) checkPlugin() {
	if x.cfg.Plugin == PluginUnused {
		return
	}
	if x.snap.ExchangeTypes == nil {
		x.unseenf(AreaPlugin, "the presence of the plugin rabbitmq_delayed_message_exchange could not be checked")
		return
	}
	if slices.Contains(x.snap.ExchangeTypes, "x-delayed-message") {
		x.notef("the plugin keeps its messages on one node and in its memory: they are lost with that node")
		return
	}
	f := Finding{ID: "plugin-missing", Severity: SeverityCritical,
		What: fmt.Sprintf("RabbitMQ %s does not have the plugin rabbitmq_delayed_message_exchange, which delay.strategy asks for.", x.snap.Version),
		Why:  "No message can be delayed with this configuration.",
		Mend: "rabbitmq-plugins enable rabbitmq_delayed_message_exchange   # where it is installed; or delay.strategy: bucket",
	}
	if x.cfg.Plugin == PluginOptional {
		f.Severity = SeverityWarning
		f.What = fmt.Sprintf("RabbitMQ %s does not have the plugin rabbitmq_delayed_message_exchange, for which delay.plugin gives a range.", x.snap.Version)
		f.Why = "Delays of that range go through the buckets instead; a process that was started while the plugin was there chose otherwise."
		f.Mend = "remove delay.plugin from the configuration   # or: rabbitmq-plugins enable rabbitmq_delayed_message_exchange"
	}
	if x.version.AtLeast(4, 3, 0) {
		f.Why += " The plugin cannot run on 4.3 or later, because it needs Mnesia."
		if x.cfg.Plugin == PluginRequired {
			f.Mend = "delay.strategy: bucket   # any delay, without a plugin"
		} else {
			f.Mend = "remove delay.plugin from the configuration"
		}
	}
	x.found(f)
}

// checkInstants checks that the broker delays by an instant, as each client of the native strategy does itself.
func (x *examination) checkInstants() {
	if !x.cfg.WantsInstants() {
		return
	}
	if !x.snap.Live.BindingsKnown {
		x.notef("AMQP does not count messages that wait for an instant: whatever is said of the native strategy's queues leaves them out")
	}
	if x.snap.Instants == nil || *x.snap.Instants {
		return
	}
	x.found(Finding{ID: "instants-ignored", Severity: SeverityCritical,
		What: fmt.Sprintf("RabbitMQ %s ignores the header %s, by which the native strategy delays.", x.snap.Version, topology.HeaderInstant),
		Why:  "Clients find that out when they connect, and send nothing: every message would be delivered at once.",
		Mend: "delay.strategy: bucket   # any delay, on every broker; or upgrade all nodes to RabbitMQ 4.4 or later",
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
		What: "The cluster is partitioned: " + list(split) + " lost touch with other nodes.",
		Why:  "Both sides may change the same queues and bindings; messages of one side are dropped when they are joined again.",
		Mend: "rabbitmqctl cluster_status   # let consumers empty the classic queues of the smaller side before its nodes are restarted (stop_app, start_app)",
	})
	if len(down) > 0 {
		x.found(Finding{ID: "node-down", Severity: SeverityWarning,
			What: "Nodes of the cluster are down: " + list(down) + ".",
			Why:  "Classic queues and the plugin's messages on them are out of reach; quorum queues tolerate one failure fewer.",
			Mend: "rabbitmqctl -n " + down[0] + " start_app   # or start the node itself; its messages wait for it", Objects: down,
		})
	}
}

const blocksAll = "The broker takes no messages from anybody in the cluster: Send waits until its deadline, retries and dead letters wait too."

func (x *examination) checkAlarms() {
	for _, resource := range []string{"memory", "disk"} {
		var nodes []string
		for _, a := range x.snap.Alarms {
			if a.Resource == resource {
				nodes = append(nodes, a.Node)
			}
		}
		mend := "rabbitmqctl set_vm_memory_high_watermark 0.6   # after finding out with rabbitmq-diagnostics memory_breakdown what uses it"
		if resource == "disk" {
			mend = "df -h $(rabbitmqctl eval 'rabbit:data_dir().' | tr -d '\"')   # and free some; the limit: rabbitmqctl set_disk_free_limit mem_relative 1.0"
		}
		x.about(nodes, Finding{ID: "alarm-" + resource, Severity: SeverityCritical,
			What: fmt.Sprintf("The %s alarm is in effect on %s.", resource, list(nodes)),
			Why:  blocksAll, Mend: mend,
		})
	}
	if len(x.snap.Alarms) == 0 && x.snap.Blocked != "" {
		x.found(Finding{ID: "connection-blocked", Severity: SeverityCritical,
			What: fmt.Sprintf("The broker blocks connections that publish: %q.", x.snap.Blocked),
			Why:  blocksAll,
			Mend: "rabbitmq-diagnostics alarms   # says which resource on which node is short",
		})
	}
	blocked := x.snap.BlockedConnections
	x.about(blocked, Finding{ID: "connections-blocked", Severity: SeverityWarning,
		What: fmt.Sprintf("%s blocked: %s.", counted(len(blocked), "connection is", "connections are"), list(blocked)),
		Why:  "Messages sent on them wait, and fail at their deadlines.",
		Mend: "rabbitmq-diagnostics alarms   # the connections go on by themselves when the alarm is over",
	})
}

// checkSettings checks the names of the nodes' configuration files, which is all that the management API shows of a
// node's own settings. The setting dead_letter_worker_publisher_confirm_timeout is possible only in advanced.config.
// The content of the files is not visible.
func (x *examination) checkSettings() {
	if !slices.ContainsFunc(x.cfg.Want.Queues, atLeastOnce) {
		return
	}
	var without []string
	for _, n := range x.snap.Nodes {
		// The file has its usual name, or one set with RABBITMQ_ADVANCED_CONFIG_FILE.
		advanced := func(file string) bool { return strings.HasPrefix(path.Base(file), "advanced") }
		if n.Running && n.FilesKnown && !slices.ContainsFunc(n.ConfigFiles, advanced) {
			without = append(without, n.Name)
		}
	}
	if len(without) > 0 {
		x.notef("no advanced.config on %s, so dead_letter_worker_publisher_confirm_timeout is probably at its 3 minutes: messages that fall due around a restart may be that late, and none is lost; docs/advanced.config has the setting, docs/rabbitmq.conf what else suits delays and cannot be seen from here",
			list(without))
	}
}

func atLeastOnce(q topology.Queue) bool { return q.DeadLetter != nil && q.DeadLetter.AtLeastOnce }
