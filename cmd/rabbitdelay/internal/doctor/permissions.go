package doctor

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DefaultExchange is the name of the default exchange in permissions.
const DefaultExchange = "amq.default"

// Need is a permission and how to test it.
type Need struct {
	Access
	// Binding is used to test the permission to read an exchange. It is a binding from that exchange, which also
	// requires the permission to write to its other end.
	Binding topology.Binding
}

// Needs returns the permissions that the configured roles need on the objects in the configuration. Each permission is
// listed once, for the first role that needs it. Permissions match queue names by pattern, so for each layout it
// returns the permissions on only three of the delay queues.
func Needs(cfg Config) []Need {
	type asked struct {
		Access

		bound string
	}
	seen := map[asked]bool{}
	return slices.DeleteFunc(append(clientNeeds(cfg), bootstrapperNeeds(cfg)...), func(n Need) bool {
		key := asked{n.Access, n.Binding.Queue}
		key.Role = ""
		if seen[key] || !slices.Contains(cfg.Roles, n.Role) {
			return true
		}
		seen[key] = true
		return false
	})
}

// clientNeeds returns the permissions of producers and consumers. Consumers also need those of producers, because their
// retries are delayed messages.
func clientNeeds(cfg Config) []Need {
	var out []Need
	add := func(role Role, op string, kind topology.Kind, name string, b topology.Binding) {
		out = append(out, Need{Access{op, kind, name, role}, b})
	}
	left, deliver, both := leftOut(cfg), deliveries(cfg), []Role{RoleProducer, RoleConsumer}
	for _, role := range both {
		for _, e := range slices.Concat(deliver, entries(cfg)) {
			if !left[e] {
				add(role, "write", topology.KindExchange, e, topology.Binding{})
			}
		}
	}
	// Before its first message to a destination, a client binds the destination to make sure that it is bound.
	for _, role := range both {
		for _, d := range cfg.Want.Destinations {
			if role == RoleConsumer && d.ToExchange() {
				continue // its retries go to its own queue
			}
			for _, e := range deliver {
				add(role, "read", topology.KindExchange, e, topology.Binding{Exchange: e, Queue: d.TargetQueue(cfg.Prefix)})
			}
		}
	}
	// Before the first message on a connection, a client tests whether the broker delays messages until a given time.
	if cfg.WantsInstants() {
		queue, e := naming.CanaryQueue(cfg.Prefix)+"doctor", topology.DeliveryExchange(cfg.Prefix)
		for _, role := range both {
			add(role, "configure", topology.KindQueue, queue, topology.Binding{})
			add(role, "read", topology.KindQueue, queue, topology.Binding{})
			add(role, "read", topology.KindExchange, e, topology.Binding{Exchange: e, Queue: queue})
		}
	}
	for _, d := range cfg.Want.Destinations {
		if !d.ToExchange() {
			add(RoleConsumer, "read", topology.KindQueue, d.Queue, topology.Binding{})
		}
	}
	if len(cfg.Want.Destinations) > 0 {
		add(RoleConsumer, "write", topology.KindExchange, DefaultExchange, topology.Binding{}) // dead letters
	}
	return out
}

func bootstrapperNeeds(cfg Config) []Need {
	var out []Need
	add := func(op string, kind topology.Kind, name string) {
		out = append(out, Need{Access: Access{op, kind, name, RoleBootstrapper}})
	}
	left := leftOut(cfg)
	for _, e := range cfg.Want.Exchanges {
		if left[e.Name] {
			continue
		}
		add("configure", topology.KindExchange, e.Name)
		if e.AlternateExchange != "" {
			add("write", topology.KindExchange, e.AlternateExchange)
		}
	}
	for _, q := range cfg.Want.Queues {
		if left[q.Name] {
			continue
		}
		add("configure", topology.KindQueue, q.Name)
		if q.DeadLetter != nil {
			add("read", topology.KindQueue, q.Name)
			add("write", topology.KindExchange, cmp.Or(q.DeadLetter.Exchange, DefaultExchange))
		}
	}
	sources := map[string]bool{}
	for _, b := range cfg.Want.Bindings {
		if !sources[b.Exchange] && !left[b.Exchange] {
			sources[b.Exchange] = true
			out = append(out, Need{Access{"read", topology.KindExchange, b.Exchange, RoleBootstrapper}, b})
		}
	}
	return out
}

// leftOut returns the delay queues, and the exchanges with the same names, after the first three of their layout.
func leftOut(cfg Config) map[string]bool {
	left, taken := map[string]bool{}, map[string]int{}
	for _, q := range cfg.Want.Queues {
		if layout, ok := naming.DelaysOf(cfg.Prefix, q.Name); ok {
			taken[layout]++
			left[q.Name] = taken[layout] > 3
		}
	}
	return left
}

// entries returns the strategies' exchanges to which messages are published.
func entries(cfg Config) []string {
	var names []string
	for _, e := range cfg.Want.Exchanges {
		_, theirs := foreign.System(e.Name)
		switch {
		case theirs && !foreign.IsDelivery(e.Name):
			names = append(names, e.Name)
		case strings.HasPrefix(e.Name, cfg.Prefix+".") && e.AlternateExchange == "" && e.Name != topology.ParkedQueue(cfg.Prefix):
			names = append(names, e.Name)
		}
	}
	return names
}

func (x *examination) checkPermissions() {
	for _, role := range []Role{RoleProducer, RoleConsumer, RoleBootstrapper} {
		for _, op := range []string{"configure", "write", "read"} {
			var names []string
			for _, a := range x.snap.Denied {
				if a.Role == role && a.Operation == op {
					names = append(names, a.Name)
				}
			}
			x.about(names, Finding{ID: "permission-" + op, Severity: SeverityCritical,
				What: fmt.Sprintf("The user lacks the permission to %s %s, which a %s needs.", op, list(names), role),
				Why: map[Role]string{
					RoleProducer:     "Messages cannot be sent, because the broker closes the channel of a publisher without the write permission.",
					RoleConsumer:     "A consumer cannot consume, or cannot retry and dead-letter, which leaves the message unacknowledged forever.",
					RoleBootstrapper: "Neither apply nor clients can declare missing objects (broker.declare: missing). For clients that need not declare anything, set broker.declare: nothing.",
				}[role],
				Fix: x.ctl("set_permissions", "USER", "CONFIGURE", "WRITE", "READ") + fmt.Sprintf("   # with ^(%s)$ in %s; docs/permissions.md has the patterns for each role",
					x.patterns(names), strings.ToUpper(op)),
			})
		}
	}
}

// patterns returns regular expressions that match the names. For a delay queue, the expression matches all queues of
// the layout, because only some of them were tested. Canaries have a separate pattern.
func (x *examination) patterns(names []string) string {
	var out []string
	for _, name := range names {
		pattern := regexp.QuoteMeta(name)
		canary := naming.CanaryQueue(x.cfg.Prefix)
		if l, ok := naming.LayoutOf(x.cfg.Prefix, name); strings.HasPrefix(name, canary) {
			pattern = regexp.QuoteMeta(canary) + ".*"
		} else if ok && strings.HasPrefix(name, l.Name+".") && !strings.HasPrefix(name, l.Name+".level-") {
			pattern = regexp.QuoteMeta(l.Name+".") + "[0-9][^.]*"
		}
		if !slices.Contains(out, pattern) {
			out = append(out, pattern)
		}
	}
	if len(out) > maxListed {
		out = append(out[:maxListed], "…")
	}
	return strings.Join(out, "|")
}
