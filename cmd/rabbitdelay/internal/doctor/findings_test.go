package doctor

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// healthy returns the configuration and a snapshot of a cluster with three nodes and no problems.
func healthy(t *testing.T) (Config, Snapshot) {
	t.Helper()
	b, err := dlx.NewBucket(dlx.BucketConfig{Radices: []int{3, 3}})
	if err != nil {
		t.Fatal(err)
	}
	want := b.Topology()
	want.Destinations = []topology.Destination{{Queue: "q"}, {Name: "e", Exchange: "amq.topic", RoutingKey: "a.b"}}
	for _, d := range want.Destinations {
		want.Bindings = append(want.Bindings, b.Bindings(d)...)
	}
	want = want.WithDestinationQueues("delay", topology.Quorum)

	nodes := []string{"n1", "n2", "n3"}
	s := Snapshot{
		Version: "4.3.6", ExchangeTypes: []string{"topic"}, Flags: map[string]bool{"stream_queue": true}, NodesComplete: true,
		Clocks: []Clock{{}},
		Live: plan.State{
			Source: "management API", Exchanges: map[string]plan.Exchange{}, Queues: map[string]plan.Queue{},
			BindingsKnown: true, PoliciesKnown: true, Bindings: slices.Clone(want.Bindings),
		},
	}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, Node{Name: n, Running: true})
	}
	for _, e := range want.Exchanges {
		s.Live.Exchanges[e.Name] = plan.Exchange{ArgumentsKnown: true, Kind: e.Kind, Durable: true, Arguments: e.Table()}
	}
	for _, q := range want.Queues {
		s.Live.Queues[q.Name] = plan.Queue{
			ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Arguments: q.Table(), Consumers: 1,
			Members: nodes, Online: nodes, Node: "n1",
		}
	}
	return Config{Want: want, File: "delays.yaml"}, s
}

// alter changes one queue in a snapshot.
func (s *Snapshot) alter(name string, change func(q *plan.Queue)) {
	q := s.Live.Queues[name]
	args := amqp.Table{}
	maps.Copy(args, q.Arguments)
	q.Arguments = args
	change(&q)
	s.Live.Queues[name] = q
}

// leaving sets the number of dead letters in transit from a delay queue to the next queue.
func (s *Snapshot) leaving(name string, n int64) {
	s.alter(name, func(q *plan.Queue) { q.Messages, q.Leaving = n, n })
}

func (s *Snapshot) add(name string, q plan.Queue) { s.Live.Queues[name] = q }

// ahead returns the counts for n tasks that were sent and are not due yet.
func ahead(n int64) *Tasks {
	due := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	return &Tasks{Ahead: n, ResendFrom: due.Add(2 * time.Minute), ResendTo: due.Add(3*time.Hour + 2*time.Minute)}
}

// nativeQueues returns the parked queue and the holding queue of a native strategy with one holding queue.
func nativeQueues() []topology.Queue {
	n, err := dlx.NewNative(dlx.NativeConfig{Queues: 1})
	if err != nil {
		panic(err)
	}
	return n.Topology().Queues
}

// native adds a holding queue to the configuration and the broker.
func (s *Snapshot) native(c *Config) {
	for _, q := range nativeQueues()[1:] {
		c.Want.Queues = append(c.Want.Queues, q)
		nodes := []string{"n1", "n2", "n3"}
		s.add(q.Name, plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Arguments: q.Table(), Members: nodes, Online: nodes})
	}
}

func policy(name, pattern, applyTo string, definition map[string]any) plan.Policy {
	return plan.Policy{Name: name, Pattern: pattern, ApplyTo: applyTo, Definition: definition}
}

const firstQueue = "delay.bucket.r3x3.100ms"

var findingCases = []struct {
	name  string
	spoil func(c *Config, s *Snapshot)
	id    string // empty: no finding
	sev   Severity
	text  string // a part of What, Why or Fix
	note  string // part of the report's notes
	blind Area   // an area that could not be checked; empty if all were checked
}{
	{name: "healthy"},
	{name: "3.10.1", spoil: func(_ *Config, s *Snapshot) {
		s.Version = "3.10.1"
	}, id: "broker-too-old", sev: SeverityCritical, text: "3.10.1 is older than 3.10.2"},
	{name: "3.9", spoil: func(_ *Config, s *Snapshot) { s.Version = "3.9.29" }, id: "broker-too-old", sev: SeverityCritical},
	{name: "3.10.2", spoil: func(_ *Config, s *Snapshot) { s.Version = "3.10.2" }, note: "old x-death header"},
	{name: "4.0.1", spoil: func(_ *Config, s *Snapshot) { s.Version = "4.0.1" }},
	{name: "not RabbitMQ", spoil: func(_ *Config, s *Snapshot) { s.Product, s.Version = "LavinMQ", "2.9.1" },
		id: "not-rabbitmq", sev: SeverityCritical, text: "The broker is LavinMQ 2.9.1, not RabbitMQ"},
	{name: "no version", spoil: func(_ *Config, s *Snapshot) { s.Version = "" }, blind: AreaVersion},
	{name: "flag off", spoil: func(_ *Config, s *Snapshot) { s.Version = "3.10.8"; s.Flags["stream_queue"] = false },
		id: "feature-flag-off", sev: SeverityCritical, text: "rabbitmqctl enable_feature_flag stream_queue && rabbitmqctl -p / set_policy"},
	{name: "flag unknown", spoil: func(_ *Config, s *Snapshot) { s.Version = "3.10.8"; s.Flags = nil }, blind: AreaFeatureFlags, note: "x-death"},
	{name: "flag off, later version", spoil: func(_ *Config, s *Snapshot) { s.Flags["stream_queue"] = false }},

	{name: "plugin missing", spoil: func(c *Config, s *Snapshot) {
		c.Plugin = PluginRequired
		s.Version = "4.0.5"
	}, id: "plugin-missing", sev: SeverityCritical, text: "rabbitmq-plugins enable"},
	{name: "plugin impossible", spoil: func(c *Config, _ *Snapshot) {
		c.Plugin = PluginRequired
	}, id: "plugin-missing", sev: SeverityCritical, text: "cannot run on 4.3"},
	{name: "plugin optional", spoil: func(c *Config, s *Snapshot) {
		c.Plugin = PluginOptional
		s.Version = "4.0.5"
	}, id: "plugin-missing", sev: SeverityWarning, text: "remove delay.plugin"},
	{name: "plugin unknown", spoil: func(c *Config, s *Snapshot) { c.Plugin = PluginOptional; s.ExchangeTypes = nil }, blind: AreaPlugin},
	{name: "plugin there", spoil: func(c *Config, s *Snapshot) {
		c.Plugin = PluginOptional
		s.ExchangeTypes = append(s.ExchangeTypes, "x-delayed-message")
	}, note: "lost if it is lost"},
	{name: "plugin on a cluster", spoil: func(c *Config, s *Snapshot) {
		c.Plugin = PluginRequired
		s.ExchangeTypes = append(s.ExchangeTypes, "x-delayed-message")
	}, id: "plugin-on-cluster", sev: SeverityWarning, text: "cluster of 3 nodes"},

	{name: "delivery times ignored", spoil: func(c *Config, s *Snapshot) {
		s.native(c)
		s.Instants = new(bool)
	}, id: "instants-ignored", sev: SeverityCritical, text: "delay.strategy: bucket"},
	{name: "instants", spoil: func(c *Config, s *Snapshot) { s.native(c); s.Instants = new(bool); *s.Instants = true }},
	{name: "delivery times, not tested", spoil: func(c *Config, s *Snapshot) { s.native(c) }},
	{name: "delivery times over AMQP", spoil: func(c *Config, s *Snapshot) { s.native(c); s.Live.BindingsKnown = false }, note: "does not count"},
	{name: "a length limit where messages wait for their delivery time", spoil: func(c *Config, s *Snapshot) {
		s.native(c)
		s.Live.Policies = []plan.Policy{policy("short", "^delay.native", "queues", map[string]any{"max-length": 100.0})}
	}, id: "policy-max-length", sev: SeverityCritical, text: "busy forever"},
	{name: "messages that wait for a delivery time in an unlisted layout", spoil: func(_ *Config, s *Snapshot) {
		n := nativeQueues()
		s.add("delay.native.1", plan.Queue{ArgumentsKnown: true, Messages: 3, Type: topology.Quorum, Arguments: n[1].Table()})
	}, id: "leftover-unbound", sev: SeverityCritical, text: "delay: {previous: [{strategy: native}]}"},

	{name: "node down", spoil: func(_ *Config, s *Snapshot) { s.Nodes[1].Running = false }, id: "node-down", sev: SeverityWarning, text: "n2"},
	{name: "partition", spoil: func(_ *Config, s *Snapshot) {
		s.Nodes[0].Partitions = []string{"n2"}
	}, id: "network-partition", sev: SeverityCritical, text: "n1"},
	{name: "memory alarm", spoil: func(_ *Config, s *Snapshot) {
		s.Alarms = []Alarm{{"n1", "memory"}, {"n3", "memory"}}
	}, id: "alarm-memory", sev: SeverityCritical, text: "n1 and n3"},
	{name: "disk alarm", spoil: func(_ *Config, s *Snapshot) {
		s.Alarms = []Alarm{{"n1", "disk space"}}
		s.Blocked = "low on disk"
	}, id: "alarm-disk", sev: SeverityCritical},
	{name: "an alarm of another resource", spoil: func(_ *Config, s *Snapshot) {
		s.Alarms = []Alarm{{"n1", "file descriptors"}}
	}, id: "alarm-other", sev: SeverityCritical, text: "The file descriptors alarm is in effect on n1."},
	{name: "blocked", spoil: func(_ *Config, s *Snapshot) { s.Blocked = "low on memory" }, id: "connection-blocked", sev: SeverityCritical, text: "low on memory"},
	{name: "others blocked", spoil: func(_ *Config, s *Snapshot) {
		s.BlockedConnections = []string{"a", "b"}
	}, id: "connections-blocked", sev: SeverityWarning, text: "2 connections are blocked: a and b"},

	{name: "may not write", spoil: func(_ *Config, s *Snapshot) {
		s.Denied = []Access{
			{"write", topology.KindExchange, "delay.bucket.r3x3.300ms", RoleProducer},
			{"write", topology.KindExchange, "delay.bucket.r3x3.600ms", RoleProducer},
			{"write", topology.KindExchange, "delay.deliver", RoleProducer},
		}
	}, id: "permission-write", sev: SeverityCritical, text: `^(delay\.bucket\.r3x3\.[0-9][^.]*|delay\.deliver)$ in WRITE`},
	{name: "may not configure a route queue", spoil: func(_ *Config, s *Snapshot) {
		s.Denied = []Access{{"configure", topology.KindQueue, "delay.route.amq.topic:a.b", RoleBootstrapper}}
	}, id: "permission-configure", sev: SeverityCritical, text: `^(delay\.route\.amq\.topic:a\.b)$ in CONFIGURE`},
	{name: "may not read", spoil: func(_ *Config, s *Snapshot) {
		s.Denied = []Access{{"read", topology.KindQueue, "q", RoleConsumer}}
	}, id: "permission-read", sev: SeverityCritical, text: "which a consumer needs"},
	{name: "may not configure", spoil: func(_ *Config, s *Snapshot) {
		s.Denied = []Access{{"configure", topology.KindQueue, "q", RoleBootstrapper}}
	}, id: "permission-configure", sev: SeverityCritical, text: "broker.declare: nothing"},

	{name: "no room", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Exchanges, s.Live.Queues, s.Live.Bindings = nil, nil, nil
		s.Live.Vhost, s.Live.QueueLimit = "/", 3
	}, id: "queue-limit", sev: SeverityCritical, text: `the virtual host "/" allows 3 queues and has 0; these settings need`},
	{name: "too few connections", spoil: func(_ *Config, s *Snapshot) { s.Live.ConnectionLimit = 2 },
		id: "connection-limit", sev: SeverityCritical, text: `allows 2 connections, but one client uses three`},
	{name: "enough connections", spoil: func(_ *Config, s *Snapshot) { s.Live.ConnectionLimit = 3 }},
	{name: "room for what is missing", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Exchanges, s.Live.Queues, s.Live.Bindings = nil, nil, nil
		s.Live.QueueLimit = 100
	}, id: "topology-missing", sev: SeverityWarning, text: "rabbitdelay apply"},
	{name: "nothing applied", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Exchanges, s.Live.Queues, s.Live.Bindings = nil, nil, nil
	}, id: "topology-missing", sev: SeverityWarning, text: "rabbitdelay apply -f delays.yaml"},
	{name: "queue missing", spoil: func(_ *Config, s *Snapshot) {
		delete(s.Live.Queues, firstQueue)
	}, id: "queue-missing", sev: SeverityCritical, text: firstQueue},
	{name: "exchange missing", spoil: func(_ *Config, s *Snapshot) {
		delete(s.Live.Exchanges, "delay.bucket.r3x3.level-0")
	}, id: "exchange-missing", sev: SeverityCritical, text: "level-0"},
	{name: "binding missing", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Bindings = s.Live.Bindings[1:]
	}, id: "binding-missing", sev: SeverityCritical, text: "1 binding is missing"},
	{name: "bindings unknown", spoil: func(_ *Config, s *Snapshot) { s.Live.Bindings, s.Live.BindingsKnown = nil, false }, blind: AreaBindings},
	{name: "no alternate exchange", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Exchanges["delay.deliver"] = plan.Exchange{ArgumentsKnown: true, Kind: "topic", Durable: true}
	}, id: "alternate-exchange", sev: SeverityCritical, text: `set_policy --apply-to exchanges delay-alternate ` +
		`'^delay\.deliver$' '{"alternate-exchange":"delay.parked"}'`},
	{name: "entry with an alternate exchange", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Exchanges["delay.bucket.r3x3.300ms"] = plan.Exchange{
			ArgumentsKnown: true, Kind: "fanout", Durable: true, Arguments: amqp.Table{"alternate-exchange": "x"},
		}
	}, id: "alternate-exchange", sev: SeverityCritical, text: "would disappear"},
	{name: "exchange of another type", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Exchanges["delay.bucket.r3x3.level-0"] = plan.Exchange{ArgumentsKnown: true, Kind: "direct", Durable: true}
	}, id: "exchange-differs", sev: SeverityCritical, text: `wanted "topic", found "direct"`},
	{name: "at most once by arguments", spoil: func(_ *Config, s *Snapshot) {
		s.alter(firstQueue, func(q *plan.Queue) { delete(q.Arguments, argument.DeadLetterStrategy) })
	}, id: "dead-letter-at-most-once", sev: SeverityCritical, text: "rabbitdelay destroy -f delays.yaml --layout " +
		firstQueue + " && rabbitdelay apply -f delays.yaml"},
	{name: "overflow by arguments", spoil: func(_ *Config, s *Snapshot) {
		for _, n := range []string{firstQueue, "delay.bucket.r3x3.200ms"} {
			s.alter(n, func(q *plan.Queue) { delete(q.Arguments, argument.Overflow) })
		}
	}, id: "dead-letter-at-most-once", sev: SeverityCritical, text: "--layout delay.bucket.r3x3.100ms,delay.bucket.r3x3.200ms && "},
	{name: "another TTL", spoil: func(_ *Config, s *Snapshot) {
		s.alter(firstQueue, func(q *plan.Queue) { q.Arguments[argument.MessageTTL] = 5 })
	}, id: "queue-differs", sev: SeverityCritical, text: "x-message-ttl: wanted 100, found 5"},
	{name: "queues of an older version", spoil: func(c *Config, s *Snapshot) {
		for _, q := range c.Want.Queues {
			s.alter(q.Name, func(q *plan.Queue) { delete(q.Arguments, argument.DeliveryLimit) })
		}
	}, id: "queue-differs", sev: SeverityCritical, text: "4 queues differ from their definitions, delay.bucket.r3x3.300ms"},
	{name: "destination of one's own", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.Arguments[argument.DeliveryLimit] = 5 })
	}, id: "queue-differs", sev: SeverityWarning, text: "change the queue's definition under queues to match the broker, or rename the queue there"},

	{name: "policy lowers the TTL", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "delay", "queues", map[string]any{"message-ttl": 50.0})}
	}, id: "policy-message-ttl", sev: SeverityCritical, text: `set_policy --priority 0 --apply-to queues p '^(?!delay\.)(?=.*(?:delay))' '{"message-ttl":50}'`},
	{name: "policy with a longer TTL", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "^delay.bucket", "queues", map[string]any{"message-ttl": 5e9})}
	}},
	{name: "operator policy expires", spoil: func(_ *Config, s *Snapshot) {
		p := policy("p", "100ms", "", map[string]any{"expires": 5000.0})
		p.Operator = true
		s.Live.Policies = []plan.Policy{p}
	}, id: "policy-expires", sev: SeverityCritical, text: "set_operator_policy --priority 0 --apply-to all p"},
	{name: "policy on all queues drops dead letters", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", ".*", "queues", map[string]any{"message-ttl": 6e4})}
	}, id: "policy-message-ttl", sev: SeverityCritical, text: `on 2 queues of dead letters or parked messages: ` +
		`delay.parked and q.dead. Messages that have not been handled after 1m would be dropped. ` +
		`rabbitmqctl -p / set_policy --priority 0 --apply-to queues p '^(?!delay\.|.*\.dead$)(?=.*(?:.*))'`},
	{name: "policy after its cure", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", `^(?!delay\.|.*\.dead$)(?=.*(?:.*))`, "queues", map[string]any{"message-ttl": 6e4})}
	}},
	{name: "policy whose cure came before a destination", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", `^(?!delay\.)(?=.*(?:a|d))`, "queues", map[string]any{"message-ttl": 6e4})}
	}, id: "policy-message-ttl", sev: SeverityCritical, text: `p '^(?!.*\.dead$)(?!delay\.)(?=.*(?:a|d))'`},
	{name: "policy deletes the parked queue", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "parked", "all", map[string]any{"expires": 5000.0})}
	}, id: "policy-expires", sev: SeverityCritical, text: "would delete the queue, with the messages in it"},
	{name: "policy bounds dead letters", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "dead$", "queues", map[string]any{"max-length": 10.0})}
	}, id: "policy-max-length", sev: SeverityWarning, text: "1 queue of dead letters or parked messages: q.dead. " +
		"The oldest messages of a full queue would be dropped"},
	{name: "policy drops dead letters of a full queue", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "dead$", "queues", map[string]any{"max-length": 10.0})}
		s.alter("q.dead", func(q *plan.Queue) { q.Messages, q.Consumers = 10, 0 })
	}, id: "policy-max-length", sev: SeverityCritical},
	{name: "operator policy has dead letters refused", spoil: func(_ *Config, s *Snapshot) {
		p := policy("p", "dead$", "quorum_queues", map[string]any{"max-length-bytes": 1000.0, "overflow": "reject-publish"})
		p.Operator = true
		s.Live.Policies = []plan.Policy{p}
	}, id: "policy-max-length-bytes", sev: SeverityWarning, text: "A full queue would refuse messages, which their consumers then hold unacknowledged"},
	{name: "policy sends dead letters elsewhere", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "dead$", "queues", map[string]any{"message-ttl": 0.0, "dead-letter-exchange": "x"})}
	}, id: "policy-message-ttl", sev: SeverityWarning, text: `forwarded to the exchange "x", where requeue does not find them`},
	{name: "policy on dead letters of a destination that a program has bound", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-delivery-limit": -1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graveyard"})
		s.add("graveyard", plan.Queue{ArgumentsKnown: true, Type: topology.Classic, Durable: true})
		s.Live.Policies = []plan.Policy{policy("p", "^grave", "classic_queues", map[string]any{"message-ttl": 1.0})}
	}, id: "policy-message-ttl", sev: SeverityCritical, text: `'^(?!graveyard$)(?=.*(?:^grave))'`},
	{name: "policy that harms no dead letters", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{
			policy("p", "dead$|parked$", "queues", map[string]any{"overflow": "reject-publish", "dead-letter-exchange": "x", "delivery-limit": -1.0}),
		}
	}},
	{name: "policy drops at the head", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "100ms", "queues", map[string]any{"overflow": "drop-head"})}
	}, id: "dead-letter-at-most-once", sev: SeverityCritical, text: `The policy "p" sets overflow to "drop-head" on 1 delay queue`},
	{name: "policy limits the length", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "100ms", "queues", map[string]any{"max-length": 10.0})}
	}, id: "policy-max-length", sev: SeverityWarning},
	{name: "policy with lookahead on a queue that is missing", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", "(?=d)delay", "queues", map[string]any{"expires": 1.0})}
		delete(s.Live.Queues, firstQueue)
	}, id: "policy-unreadable", sev: SeverityWarning},
	{name: "policy that leaves delays out", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Policies = []plan.Policy{policy("p", `^(?!delay\.)(?=.*(?:delay))`, "queues", map[string]any{"expires": 1.0})}
		delete(s.Live.Queues, firstQueue)
	}, id: "queue-missing", sev: SeverityCritical},
	{name: "unlisted policy in force", spoil: func(_ *Config, s *Snapshot) {
		s.Live.PoliciesKnown = false
		s.alter(firstQueue, func(q *plan.Queue) { q.Policy, q.EffectivePolicy = "p", map[string]any{"message-ttl": 5.0} })
	}, id: "policy-message-ttl", sev: SeverityCritical, text: "list_policies", blind: AreaPolicies},
	{name: "policy on an older layout that drains", spoil: func(_ *Config, s *Snapshot) {
		s.oldLayout(7)
		s.Live.Policies = []plan.Policy{policy("p", "hex", "queues", map[string]any{"message-ttl": 5.0})}
	}, id: "policy-message-ttl", sev: SeverityCritical, text: "delay.bucket.hex.2s"},

	{name: "classic on a cluster", spoil: func(_ *Config, s *Snapshot) {
		s.alter(firstQueue, func(q *plan.Queue) { q.Type = topology.Classic })
		s.Live.Queues[firstQueue].Arguments[argument.QueueType] = "quorum" // so that this is the only finding
	}, id: "classic-on-cluster", sev: SeverityWarning, text: "one of 3 nodes"},
	{name: "few replicas", spoil: func(_ *Config, s *Snapshot) {
		s.alter(firstQueue, func(q *plan.Queue) { q.Members, q.Online = []string{"n1"}, []string{"n1"} })
	}, id: "quorum-members", sev: SeverityWarning, text: "rabbitmq-queues grow"},
	{name: "no advanced.config", spoil: func(_ *Config, s *Snapshot) {
		s.Nodes[1].FilesKnown = true
		s.Nodes[1].ConfigFiles = []string{"/etc/rabbitmq/rabbitmq.conf"}
	}, note: "no advanced.config on "},
	{name: "an advanced.config", spoil: func(_ *Config, s *Snapshot) {
		s.Nodes[1].FilesKnown = true
		s.Nodes[1].ConfigFiles = []string{"/etc/rabbitmq/advanced.config"}
	}},
	{name: "three of five", spoil: func(_ *Config, s *Snapshot) {
		s.Nodes = append(s.Nodes, Node{Name: "n4", Running: true}, Node{Name: "n5", Running: true})
	}},
	{name: "a replica down", spoil: func(_ *Config, s *Snapshot) {
		s.alter(firstQueue, func(q *plan.Queue) { q.Members, q.Online = []string{"n1", "n2", "n3"}, []string{"n1", "n2"} })
	}, id: "quorum-offline", sev: SeverityWarning},
	{name: "a replica of another application's queue down", spoil: func(_ *Config, s *Snapshot) {
		s.Live.Queues["invoices"] = plan.Queue{Type: topology.Quorum, Members: []string{"n1", "n2", "n3"}, Online: []string{"n1", "n2"}}
	}, id: "quorum-offline", sev: SeverityWarning},
	{name: "no majority", spoil: func(_ *Config, s *Snapshot) {
		s.alter(firstQueue, func(q *plan.Queue) { q.Members, q.Online = []string{"n1", "n2", "n3"}, []string{"n1"} })
	}, id: "quorum-lost", sev: SeverityCritical},
	{name: "no process, the broker says", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) {
			q.Unavailable = "Cannot get a message from queue 'queue 'q' in vhost '/'': noproc"
		})
	}, id: "queue-process-gone", sev: SeverityCritical, text: `list_to_atom("%2F_q")`, blind: AreaMessages},
	{name: "no process, the API says", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) {
			q.Members, q.Online, q.Unavailable = []string{"n1"}, nil, "the queue's state is down"
		})
	}, id: "queue-process-gone", sev: SeverityCritical, blind: AreaMessages},
	{name: "nodes unknown", spoil: func(_ *Config, s *Snapshot) { s.Nodes = nil }, blind: AreaNodes},
	{name: "some nodes", spoil: func(_ *Config, s *Snapshot) { s.NodesComplete = false }, blind: AreaNodes},

	{name: "another layout, empty", spoil: func(_ *Config, s *Snapshot) { s.oldLayout(0) }, note: "rabbitdelay destroy -f delays.yaml --layout delay.bucket.hex"},
	{name: "another layout, for which nothing is bound", spoil: func(_ *Config, s *Snapshot) {
		s.oldLayout(7)
	}, id: "leftover-unbound", sev: SeverityCritical, text: "delay: {previous: [{layout: hex}]}"},
	{name: "another layout with destinations of its own", spoil: func(_ *Config, s *Snapshot) {
		s.oldLayout(7)
		s.Live.Bindings = append(s.Live.Bindings, topology.Binding{Exchange: "delay.deliver", Queue: "payments", RoutingKey: "hex.*.*.*.*.*.*.*.*.payments"})
		s.add("payments", plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, Consumers: 1, Arguments: amqp.Table{"x-dead-letter-exchange": ""}})
	}, note: "delay.bucket.hex has not drained: 7 messages wait in 1 queue"},
	{name: "a layout that was retired", spoil: func(c *Config, _ *Snapshot) {
		c.Want.Bindings = append(slices.Clone(c.Want.Bindings), topology.Binding{Exchange: "delay.deliver", Queue: "q", RoutingKey: "hex.*.*.*.*.*.*.*.*.q"})
	}, note: "the layout hex is not on the broker, and destinations are not bound for it: remove the layout from delay.previous"},
	{name: "a layout before it is retired", spoil: func(c *Config, s *Snapshot) {
		s.oldLayout(0)
		c.Want.Bindings = append(slices.Clone(c.Want.Bindings), topology.Binding{Exchange: "delay.deliver", Queue: "q", RoutingKey: "hex.*.*.*.*.*.*.*.*.q"})
	}, id: "binding-missing", sev: SeverityCritical, text: "1 binding is missing"},
	{name: "the same layout of classic queues that drain", spoil: func(_ *Config, s *Snapshot) {
		s.add("delay.bucket.r3x3-classic.100ms", plan.Queue{
			ArgumentsKnown: true, Type: topology.Classic, Messages: 7, Arguments: amqp.Table{"x-message-ttl": 100.0, "x-dead-letter-exchange": "delay.deliver"},
		})
	}, note: "delay.bucket.r3x3-classic has not drained: 7 messages wait in 1 queue"},
	{name: "a TTL that was removed, next to one in use", spoil: func(c *Config, s *Snapshot) {
		c.Want = c.Want.WithDestinationQueues("delay", topology.Quorum) // a copy
		minute := time.Minute
		q := topology.Queue{Name: "delay.ttl.1m", MessageTTL: &minute, DeadLetter: &topology.DeadLetter{Exchange: "delay.deliver"}}
		c.Want.Queues = append(c.Want.Queues, q)
		for _, name := range []string{"delay.ttl.1m", "delay.ttl.2m"} {
			s.add(name, plan.Queue{ArgumentsKnown: true, Durable: true, Type: topology.Quorum, Arguments: q.Table()})
		}
	}, note: "rabbitdelay destroy -f delays.yaml --layout delay.ttl.2m"},
	{name: "a TTL that was removed, with messages and its strategy", spoil: func(_ *Config, s *Snapshot) {
		s.add("delay.ttl.2m", plan.Queue{ArgumentsKnown: true, Messages: 1, Arguments: amqp.Table{
			"x-message-ttl": 120000.0, "x-dead-letter-exchange": "delay.deliver",
		}})
	}, id: "leftover-unbound", sev: SeverityCritical, text: "delay: {previous: [{strategy: ttl, delays: [2m]}]}"},
	{name: "an old layout that drains", spoil: func(_ *Config, s *Snapshot) {
		s.oldLayout(7)
		for _, q := range []string{"q", "delay.route.amq.topic:a.b"} {
			s.Live.Bindings = append(s.Live.Bindings, topology.Binding{Exchange: "delay.deliver", Queue: q, RoutingKey: "hex.*.*.*.*.*.*.*.*." + q})
		}
	}, note: "delay.bucket.hex has not drained: 7 messages wait in 1 queue"},
	{name: "a queue of others", spoil: func(_ *Config, s *Snapshot) {
		s.add("delay.bucketful", plan.Queue{ArgumentsKnown: true, Arguments: amqp.Table{"x-message-ttl": 1, "x-dead-letter-exchange": "x"}})
	}},
	{name: "parked", spoil: func(_ *Config, s *Snapshot) {
		s.alter("delay.parked", func(q *plan.Queue) { q.Messages = 1234 })
		s.ParkedSamples = []Parked{{"clock.1.a:b", "a:b"}, {"r3x3.0.0.q", ""}, {"r3x3.0.0.xq", ""}}
	}, id: "parked-messages", sev: SeverityCritical, text: "a:b, q and r3x3.0.0.xq"},

	{name: "no consumer", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.Consumers, q.Messages = 0, 1 })
	}, id: "destination-unconsumed", sev: SeverityWarning, text: "start the service that consumes q"},
	{name: "no consumer, and nothing waits", spoil: func(_ *Config, s *Snapshot) { s.alter("q", func(q *plan.Queue) { q.Consumers = 0 }) }},
	{name: "backlog", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.Messages = 10_001 })
	}, id: "destination-backlog", sev: SeverityWarning, text: "10,001 messages wait"},
	{name: "unacknowledged is no backlog", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.Messages, q.Unacked = 10_001, 10_001 })
	}},
	{name: "consumer timeout", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"consumer-timeout": 5000.0} })
	}, id: "destination-consumer-timeout", sev: SeverityWarning, text: "within 5s"},
	{name: "consumer timeout that is long enough", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"consumer-timeout": 60_000.0} })
	}},
	{name: "default delivery limit", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", nil)
	}, id: "destination-delivery-limit", sev: SeverityWarning, text: "after 20 deliveries, RabbitMQ's default since 4.0"},
	{name: "delivery limit of 1 before 4.3", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-delivery-limit": 1})
		s.Version = "4.0.5"
	}, id: "destination-delivery-limit", sev: SeverityWarning, text: "only holds messages until they are due"},
	{name: "default delivery limit before 4.0", spoil: func(_ *Config, s *Snapshot) { s.foreign("f", nil); s.Version = "3.13.7" }, note: "x-death"},
	{name: "no delivery limit", spoil: func(_ *Config, s *Snapshot) { s.foreign("f", amqp.Table{"x-delivery-limit": -1}) }},
	{name: "a dead-letter exchange by policy", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", nil)
		s.alter("f", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"dead-letter-exchange": ""} })
	}},
	{name: "destination that drops", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-delivery-limit": -1, "x-message-ttl": 1000, "x-max-length": 5, "x-max-length-bytes": 6000})
	}, id: "destination-drops", sev: SeverityWarning, text: "messages older than 1s are dropped; " +
		"if it has more than 5 messages, the oldest are dropped; if it has more than 6,000 bytes"},
	{name: "destination whose dead letters may be lost", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) {
			q.EffectivePolicy, q.Policy = map[string]any{"overflow": "drop-head"}, "p"
		})
	}, id: "destination-drops", sev: SeverityWarning, text: "overflow drop-head disables at-least-once"},
	{name: "destination that refuses", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-delivery-limit": -1, "x-max-length": 5, "x-max-length-bytes": 6000, "x-overflow": "reject-publish"})
	}, id: "destination-refuses", sev: SeverityWarning, text: "The destination queue f refuses more than 5 messages or 6,000 bytes."},
	{name: "destination that refuses by policy, and dead letters wait", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) {
			q.Policy, q.EffectivePolicy = "p", map[string]any{"max-length-bytes": 5000.0, "overflow": "reject-publish"}
			q.ReadyBytes = 4000
		})
		s.leaving(firstQueue, 40)
	}, id: "destination-refuses", sev: SeverityCritical, text: "refuses more than 5,000 bytes; 40 messages that are due wait in delay queues. After 32"},
	{name: "dead letters on their way, and room for them", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-delivery-limit": -1, "x-max-length": 100, "x-overflow": "reject-publish"})
		s.alter("f", func(q *plan.Queue) { q.Messages = 79 })
		s.leaving(firstQueue, 40)
	}, id: "destination-refuses", sev: SeverityWarning, text: "routing_key: f), so that only its route queue has to wait"},
	{name: "destination without a leader, and dead letters wait", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.State = "minority" })
		s.leaving(firstQueue, 1)
	}, id: "destination-refuses", sev: SeverityCritical, text: "accepts no messages, because its state is minority; 1 message that is due waits"},
	{name: "a classic queue's own overflow beats a policy's", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-max-length": 5, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""})
		s.alter("f", func(q *plan.Queue) {
			q.Type, q.EffectivePolicy = topology.Classic, map[string]any{"overflow": "drop-head"}
		})
	}, id: "destination-refuses", sev: SeverityWarning},
	{name: "a policy's overflow beats a quorum queue's own", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-max-length": 5, "x-overflow": "reject-publish", "x-dead-letter-exchange": ""})
		s.alter("f", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"overflow": "drop-head"} })
	}},
	{name: "reject-publish without a bound", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-delivery-limit": -1, "x-overflow": "reject-publish"})
	}},
	{name: "a policy's TTL dead-letters what waits", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"message-ttl": 5000.0} })
	}, id: "destination-unhandled", sev: SeverityWarning, text: "that no handler has received: messages that have waited for 5s."},
	{name: "a policy's length dead-letters the oldest", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-dead-letter-exchange": ""})
		s.alter("f", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"max-length": 5.0, "max-length-bytes": 6000.0} })
	}, id: "destination-unhandled", sev: SeverityWarning, text: "the oldest messages if it has more than 5; the oldest messages if it has more than 6,000 bytes."},
	{name: "a policy's delivery limit of 2 before 4.3", spoil: func(_ *Config, s *Snapshot) {
		s.Version = "4.0.5"
		s.alter("q", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"delivery-limit": 2.0} })
	}, id: "destination-unhandled", sev: SeverityWarning, text: "returned more than 2 times"},
	{name: "a policy's delivery limit of 2 since 4.3", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"delivery-limit": 2.0} })
	}},
	{name: "a TTL of the queue itself", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-dead-letter-exchange": "", "x-message-ttl": 1000})
		s.alter("f", func(q *plan.Queue) { q.EffectivePolicy = map[string]any{"message-ttl": 5000.0} })
	}},
	{name: "destination that expires", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-expires": 1000, "x-dead-letter-exchange": ""})
	}, id: "destination-drops", sev: SeverityWarning, text: "deleted after 1s without use"},
	{name: "dead letters", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q.dead", func(q *plan.Queue) { q.Messages, q.Consumers = 1234, 0 })
	}, id: "dead-letters", sev: SeverityWarning, text: "Dead letters are waiting: 1,234 in q.dead."},
	{name: "dead letters of a destination that no file lists", spoil: func(_ *Config, s *Snapshot) {
		s.foreign("f", amqp.Table{"x-dead-letter-exchange": ""})
		s.add("f.dead", plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Messages: 7})
	}, id: "dead-letters", sev: SeverityWarning, text: "Dead letters are waiting: 7 in f.dead."},
	{name: "the cure of dead letters", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q.dead", func(q *plan.Queue) { q.Messages, q.Consumers = 1, 0 })
	}, id: "dead-letters", sev: SeverityWarning, text: `fix the cause, then send them back: rabbitdelay requeue --queue q.dead -f delays.yaml`},
	{name: "dead letters with a consumer", spoil: func(_ *Config, s *Snapshot) {
		s.alter("q.dead", func(q *plan.Queue) { q.Messages = 1234 })
	}, note: "1,234 dead letters are in q.dead, which has 1 consumer"},
	{name: "the database's clock", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = &Tasks{Skew: -time.Hour}
	}, id: "database-clock", sev: SeverityWarning, text: "The database's clock is 1h0m0s behind this machine's."},
	{name: "a read-only database", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = &Tasks{ReadOnly: "cannot execute UPDATE"}
	}, id: "database-read-only", sev: SeverityCritical, text: "The database reports: cannot execute UPDATE."},
	{name: "tasks without a relay", spoil: func(_ *Config, s *Snapshot) {
		now := time.Now()
		s.Tasks = &Tasks{Unsent: 3, OldestUnsent: now.Add(-time.Hour), LastError: "no route", Relays: "no relay runs on this database", Now: now}
	}, id: "tasks-not-relayed", sev: SeverityCritical, text: `3 tasks are overdue and not yet sent to the broker, ` +
		`the oldest for 1h. Until a relay sends a task, it is only a row in the database: no relay runs on this database. ` +
		`The last recorded error is "no route". rabbitdelay serve -f delays.yaml`},
	{name: "tasks that no consumer handles", spoil: func(_ *Config, s *Snapshot) {
		now := time.Now()
		s.Tasks = &Tasks{Unhandled: 1000, More: true, OldestUnhandled: now.Add(-time.Hour), Now: now}
	}, id: "tasks-not-handled", sev: SeverityWarning, text: "At least 1,000 tasks are overdue and still pending although they were sent to the broker"},
	{name: "tasks without a message", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = ahead(60)
		s.alter("delay.bucket.r3x3-1s.1s", func(q *plan.Queue) { q.Messages, q.Leaving = 10, 3 })
	}, id: "tasks-without-message", sev: SeverityCritical, text: `At least 50 tasks that are marked as sent have no message on the broker any more. ` +
		`The virtual host or the queues with their messages were deleted or purged, or the relay sends to another broker. ` +
		`The relay sends tasks again when they are overdue and nothing shows that their messages still exist, which is from 2026-01-01T10:02:00Z to 2026-01-01T13:02:00Z, so`},
	{name: "all tasks without a message", spoil: func(_ *Config, s *Snapshot) { s.Tasks = ahead(60) },
		id: "tasks-without-message", sev: SeverityCritical, text: `At least 60 tasks are marked as sent and have no message on the broker any more.`},
	{name: "tasks whose messages a later count finds", spoil: func(_ *Config, s *Snapshot) { s.Tasks = ahead(60); s.Tasks.Recounted = 60 }},
	{name: "tasks whose messages may be in a queue that does not answer", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = ahead(60)
		s.alter("delay.bucket.r3x3-1s.1s", func(q *plan.Queue) { q.Hidden = true })
	}, blind: AreaMessages},
	{name: "tasks whose messages only the management API can see", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = ahead(60)
		s.Live.BindingsKnown = false
	}, blind: AreaMessages},
	{name: "tasks whose messages are held by a consumer", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = ahead(60)
		s.alter("q", func(q *plan.Queue) { q.Messages, q.Unacked = 60, 60 })
	}},
	{name: "recurring task that cannot be planned", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = &Tasks{Idle: []IdleRecurring{{"nightly", "column headers: null"}, {"two words", "no zone"}}}
	}, id: "recurring-not-planned", sev: SeverityCritical, text: `2 recurring tasks create no tasks at present: ` +
		`"nightly": column headers: null and "two words": no zone.`},
	{name: "tasks for what is not listed", spoil: func(_ *Config, s *Snapshot) {
		s.Tasks = &Tasks{Unlisted: []UnlistedTasks{{"odd", 1}, {"x:k", 2000}}}
	}, id: "tasks-not-listed", sev: SeverityWarning, text: `Pending tasks have destinations that the file does not list: 1 task for odd and 2,000 tasks for x:k.`},
	{name: "recurring tasks unread", spoil: func(_ *Config, s *Snapshot) { s.Tasks = &Tasks{Unread: "denied"} }, blind: AreaDatabase},
	{name: "no tasks that are overdue", spoil: func(_ *Config, s *Snapshot) { s.Tasks = &Tasks{} }},
	{name: "no database", spoil: func(_ *Config, s *Snapshot) { s.Unchecked = []Unchecked{{AreaDatabase, "no answer"}} }, blind: AreaDatabase},
	{name: "asked for less", spoil: func(c *Config, s *Snapshot) {
		s.Unchecked = []Unchecked{{AreaDatabase, "no answer"}}
		c.Skip = []Area{AreaDatabase}
	}, note: "skipped, as requested (database): no answer"},
	{name: "route stuck", spoil: func(_ *Config, s *Snapshot) {
		s.alter("delay.route.amq.topic:a.b", func(q *plan.Queue) { q.Messages = 2 })
	}, id: "route-stuck", sev: SeverityCritical, text: "2 messages wait for the exchange amq.topic"},
}

// oldLayout adds a queue of the hex layout with the given number of messages.
func (s *Snapshot) oldLayout(messages int64) {
	s.add("delay.bucket.hex.2s", plan.Queue{
		ArgumentsKnown: true, Type: topology.Quorum, Messages: messages,
		Arguments: amqp.Table{"x-message-ttl": 2000.0, "x-dead-letter-exchange": "delay.bucket.hex.level-0"},
	})
	s.Live.Bindings = append(s.Live.Bindings, topology.Binding{Exchange: "delay.bucket.hex", Queue: "delay.bucket.hex.2s", RoutingKey: "hex.0.0.2.#"})
}

// foreign adds another application's quorum queue and binds it to the delivery exchange.
func (s *Snapshot) foreign(name string, args amqp.Table) {
	s.add(name, plan.Queue{ArgumentsKnown: true, Type: topology.Quorum, Durable: true, Arguments: args, Consumers: 1})
	s.Live.Bindings = append(s.Live.Bindings, topology.Binding{Exchange: "delay.deliver", Queue: name, RoutingKey: "r3x3.*.*." + name})
}

func TestFindings(t *testing.T) {
	for _, c := range findingCases {
		t.Run(c.name, func(t *testing.T) {
			cfg, snap := healthy(t)
			if c.spoil != nil {
				c.spoil(&cfg, &snap)
			}
			r := Diagnose(cfg, snap)
			if !strings.Contains(strings.Join(r.Notes, "\n"), c.note) || c.note == "" && len(r.Notes) > 0 && c.id == "" {
				t.Errorf("got the notes %q, want one containing %q", r.Notes, c.note)
			}
			blind := slices.ContainsFunc(r.Unchecked, func(u Unchecked) bool { return u.Area == c.blind })
			if c.blind != "" && !blind {
				t.Errorf("got the unchecked areas %v, want %q", r.Unchecked, c.blind)
			}
			if c.blind == "" && !r.Complete() {
				t.Errorf("got the unchecked areas %v, want none", r.Unchecked)
			}
			if c.id == "" {
				if !r.Clean() {
					t.Errorf("got the findings %+v, want none", r.Findings)
				}
				return
			}
			i := slices.IndexFunc(r.Findings, func(f Finding) bool {
				return f.ID == c.id && strings.Contains(strings.Join([]string{f.What, f.Why, f.Fix}, " "), c.text)
			})
			if i < 0 {
				t.Fatalf("got the findings %+[3]v, want a finding %[1]s containing %[2]q", c.id, c.text, r.Findings)
			}
			f := r.Findings[i]
			if f.Severity != c.sev || !strings.Contains(strings.Join([]string{f.What, f.Why, f.Fix}, " "), c.text) {
				t.Errorf("got the finding %+v, want severity %v and a text containing %q", f, c.sev, c.text)
			}
			if f.What == "" || f.Why == "" || f.Fix == "" {
				t.Errorf("got the finding %+v, want What, Why and Fix to be set", f)
			}
		})
	}
}

// No advice from the doctor loses messages. No suggested command removes messages from a queue without sending them
// elsewhere, or deletes an object that may contain messages without checking it.
func TestNoFixLosesMessages(t *testing.T) {
	for _, c := range findingCases {
		cfg, snap := healthy(t)
		if c.spoil != nil {
			c.spoil(&cfg, &snap)
		}
		r := Diagnose(cfg, snap)
		texts := slices.Clone(r.Notes)
		for _, f := range r.Findings {
			texts = append(texts, f.Fix)
		}
		for _, text := range texts {
			for _, word := range []string{
				"consume --", "delete_queue", "purge", "forget_cluster_node", "delete exchange", "delete queue",
				"--force", "--if-empty", "delete_vhost", "reset",
			} {
				if strings.Contains(text, word) {
					t.Errorf("%s: the advice is %q, want it without %q", c.name, text, word)
				}
			}
		}
	}
}

// Critical findings are listed first, and findings of both severities are counted.
func TestReportOrder(t *testing.T) {
	cfg, snap := healthy(t)
	snap.Nodes[0].Running = false
	snap.alter("delay.parked", func(q *plan.Queue) { q.Messages = 3 })
	r := Diagnose(cfg, snap)
	if len(r.Findings) != 2 {
		t.Fatalf("got the findings %+v, want 2", r.Findings)
	}
	if id := r.Findings[0].ID; id != "parked-messages" {
		t.Errorf(`the first finding is %s, want "parked-messages"`, id)
	}
	if n := r.Count(SeverityCritical); n != 1 {
		t.Errorf("%d critical findings, want 1", n)
	}
	if n := r.Count(SeverityWarning); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
	if r.Parked == nil || *r.Parked != 3 {
		t.Errorf("got Parked = %v, want 3", r.Parked)
	}
}

func TestPreviousLayoutSetting(t *testing.T) {
	twoMinutes := []leftover{{queue: topology.Queue{Name: "delay.ttl.2m"}}, {queue: topology.Queue{Name: "delay.ttl.1h30m"}}}
	for tag, want := range map[string]string{
		"clock":           "delay: {previous: [{layout: clock}]}",
		"clock-100ms":     "delay: {previous: [{layout: clock, resolution: 100ms}]}",
		"hex-10ms":        "delay: {previous: [{layout: hex, resolution: 10ms}]}",
		"r10x60x60-1s":    "delay: {previous: [{radices: [10, 60, 60], resolution: 1s}]}",
		"r2":              "delay: {previous: [{radices: [2]}]}",
		"ttl":             "delay: {previous: [{strategy: ttl, delays: [2m, 1h30m]}]}",
		"clock-1m4s500ms": "delay: {previous: [{layout: clock, resolution: 1m4s500ms}]}",
	} {
		if got := previousSetting(naming.Layout{Name: "delay.ttl", Tag: tag}, twoMinutes); got != want {
			t.Errorf("%s: got %s, want %s", tag, got, want)
		}
	}
}

// A drained layout is retired if the configuration names it as an earlier one, and destroyed otherwise.
func TestDrainedLayout(t *testing.T) {
	for name, c := range map[string]struct {
		previous bool
		want     string
	}{
		"in delay.previous": {true, "rabbitdelay retire"},
		"of another":        {false, "rabbitdelay destroy -f delays.yaml --layout delay.bucket.hex"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, snap := healthy(t)
			second := time.Second
			q := topology.Queue{
				Name: "delay.bucket.hex.1s", Type: topology.Quorum, MessageTTL: &second,
				DeadLetter: &topology.DeadLetter{Exchange: topology.DeliveryExchange("delay")},
			}
			snap.add(q.Name, plan.Queue{ArgumentsKnown: true, Type: q.Type, Durable: true, Arguments: q.Table()})
			if c.previous {
				binding := topology.Binding{Exchange: topology.DeliveryExchange("delay"), Queue: "q", RoutingKey: "hex.*.q"}
				cfg.Want.Bindings = append(cfg.Want.Bindings, binding)
				snap.Live.Bindings = append(snap.Live.Bindings, binding)
			}
			notes := strings.Join(Diagnose(cfg, snap).Notes, "\n")
			if !strings.Contains(notes, "has drained") || !strings.Contains(notes, c.want) {
				t.Errorf("got the notes %s, want \"has drained\" and %q in them", notes, c.want)
			}
		})
	}
}

func TestShellQuoting(t *testing.T) {
	for s, want := range map[string]string{"a.b": "a.b", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "^q$": "'^q$'"} {
		if got := shellQuote(s); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", s, got, want)
		}
	}
}

// Needs returns exactly the permissions that each role needs.
func TestNeeds(t *testing.T) {
	cfg, _ := healthy(t)
	cfg = cfg.WithDefaults()
	for role, want := range map[Role][]string{
		RoleProducer: {
			"write delay.deliver", "write delay.bucket.r3x3.300ms", "write delay.bucket.r3x3.600ms",
			"write delay.bucket.r3x3.100ms", "read delay.deliver", "read delay.deliver",
		},
		RoleConsumer: {
			"write delay.deliver", "write delay.bucket.r3x3.300ms", "write delay.bucket.r3x3.600ms",
			"write delay.bucket.r3x3.100ms", "read delay.deliver", "read q", "write amq.default",
		},
	} {
		cfg.Roles = []Role{role}
		var got []string
		for _, n := range Needs(cfg) {
			got = append(got, n.Operation+" "+n.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", role, got, want)
		}
	}
	cfg.Roles = []Role{RoleBootstrapper}
	seen := map[string]bool{}
	for _, n := range Needs(cfg) {
		seen[n.Operation+" "+n.Name] = true
	}
	for _, want := range []string{
		"configure delay.deliver", "configure q", "configure q.dead", "configure " + firstQueue, "read " + firstQueue, "read q", "write amq.default",
		"write delay.parked", "read delay.deliver", "configure delay.route.amq.topic:a.b", "write amq.topic",
	} {
		if !seen[want] {
			t.Errorf("a bootstrapper needs %v, want %q among them", seen, want)
		}
	}
	if seen["configure delay.bucket.r3x3.200ms"] {
		t.Errorf("got checks of more than three queues of a layout, want at most three: %v", seen)
	}
}

// A client that sends with the native strategy needs permissions for its canary queue, with which it tests the broker.
func TestNeedsOfACanary(t *testing.T) {
	cfg, snap := healthy(t)
	cfg = cfg.WithDefaults()
	snap.native(&cfg)
	for _, role := range []Role{RoleProducer, RoleConsumer} {
		cfg.Roles = []Role{role}
		var got []string
		for _, n := range Needs(cfg) {
			if strings.HasPrefix(n.Name, "delay.canary.") || strings.HasPrefix(n.Binding.Queue, "delay.canary.") {
				got = append(got, n.Operation+" "+n.Name+" "+n.Binding.Queue)
			}
		}
		if want := []string{"configure delay.canary.doctor ", "read delay.canary.doctor ", "read delay.deliver delay.canary.doctor"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", role, got, want)
		}
	}
	snap.Denied = []Access{{Operation: "configure", Kind: topology.KindQueue, Name: "delay.canary.doctor", Role: RoleConsumer}}
	if text := Diagnose(cfg, snap).Findings[0].Fix; !strings.Contains(text, `^(delay\.canary\..*)$ in CONFIGURE`) {
		t.Errorf("the fix is %s, want it to contain %q", text, `^(delay\.canary\..*)$ in CONFIGURE`)
	}
}

func TestRender(t *testing.T) {
	cfg, snap := healthy(t)
	snap.Clocks = []Clock{{Low: -3 * time.Millisecond, High: -time.Millisecond, Method: "x"}}
	snap.Notes = []string{"a\tnote\x1b[2J with " + strings.Repeat("many words ", 20)}
	var clean, spoilt, coloured strings.Builder
	if err := Diagnose(cfg, snap).Render(&clean, report.Style{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(clean.String(), "nothing is wrong\n") || !strings.Contains(clean.String(), "2ms behind this machine's, ±1ms") {
		t.Errorf("got\n%s\nwant a text with %q and \"2ms behind this machine's, ±1ms\"", clean.String(), "nothing is wrong\n")
	}
	blind := snap
	blind.Nodes, blind.Live.BindingsKnown, blind.Live.Source = nil, false, "AMQP"
	var partial strings.Builder
	if err := Diagnose(cfg, blind).Render(&partial, report.Style{}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(partial.String(), "NOT EVERYTHING WAS CHECKED: nodes") {
		t.Errorf("a partial report: got\n%s, want it to begin with \"NOT EVERYTHING WAS CHECKED: nodes\"", partial.String())
	}
	if !strings.Contains(partial.String(), "read by AMQP\n") {
		t.Errorf("a partial report: got\n%s, want \"read by AMQP\" in it", partial.String())
	}
	if strings.Contains(partial.String(), "nothing is wrong") {
		t.Errorf("a partial report: got\n%s, want no \"nothing is wrong\" in it", partial.String())
	}
	snap.Alarms = []Alarm{{"n\x1b[31m", "memory"}}
	r := Diagnose(cfg, snap)
	if err := r.Render(&spoilt, report.Style{Width: 10}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsRune(spoilt.String(), '\x1b') || !strings.Contains(spoilt.String(), "1 finding: 1 critical") {
		t.Errorf("got\n%s, want no control characters and the summary \"1 finding: 1 critical\"", spoilt.String())
	}
	for line := range strings.SplitSeq(spoilt.String(), "\n") {
		whole := strings.Contains(line, "fix ") || strings.HasPrefix(line, "RabbitMQ") || strings.HasPrefix(line, "broker")
		if len([]rune(line)) > 60 && !whole {
			t.Errorf("got a line with %d characters, want at most %d: %s", len([]rune(line)), 60, line)
		}
	}
	if err := r.Render(&coloured, report.Style{Color: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(coloured.String(), "\x1b[1;31mCRITICAL\x1b[0m") || strings.Contains(coloured.String(), "\x1b[2J") {
		t.Errorf("got %q, want the severity in red and no escape sequence from an object's name", coloured.String())
	}
}
