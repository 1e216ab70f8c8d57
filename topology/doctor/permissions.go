package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/foreign"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
)

// DefaultExchange is the name of the default exchange in permissions.
const DefaultExchange = "amq.default"

// Need is a permission and how to test it.
type Need struct {
	Access
	// For the right to read an exchange: a binding from it, which needs the right
	// to write to its other end too.
	Binding topology.Binding
}

// Needs returns the permissions that roles need on what is described. Of the delay
// queues of one layout, which permissions name by a pattern, it takes three.
func Needs(cfg Config) []Need {
	var out []Need
	add := func(role Role, op string, kind topology.Kind, name string) {
		if slices.Contains(cfg.Roles, role) {
			out = append(out, Need{Access: Access{Operation: op, Kind: kind, Name: name, Role: role}})
		}
	}
	left := leftOut(cfg)
	for _, role := range []Role{RoleProducer, RoleConsumer} { // a retry is a delayed message
		for _, e := range append(deliveries(cfg), entries(cfg)...) {
			if !left[e] {
				add(role, "write", topology.KindExchange, e)
			}
		}
	}
	out = append(out, binds(cfg)...)
	out = append(out, canaries(cfg)...)
	for _, d := range cfg.Want.Destinations {
		if !d.ToExchange() {
			add(RoleConsumer, "read", topology.KindQueue, d.Queue)
		}
	}
	if len(cfg.Want.Destinations) > 0 {
		add(RoleConsumer, "write", topology.KindExchange, DefaultExchange) // dead letters
	}
	for _, e := range cfg.Want.Exchanges {
		if left[e.Name] {
			continue
		}
		add(RoleBootstrapper, "configure", topology.KindExchange, e.Name)
		if e.AlternateExchange != "" {
			add(RoleBootstrapper, "write", topology.KindExchange, e.AlternateExchange)
		}
	}
	for _, q := range cfg.Want.Queues {
		if left[q.Name] {
			continue
		}
		add(RoleBootstrapper, "configure", topology.KindQueue, q.Name)
		if q.DeadLetter != nil {
			add(RoleBootstrapper, "read", topology.KindQueue, q.Name)
			exchange := q.DeadLetter.Exchange
			if exchange == "" {
				exchange = DefaultExchange
			}
			add(RoleBootstrapper, "write", topology.KindExchange, exchange)
		}
	}
	sources := map[string]bool{}
	for _, b := range cfg.Want.Bindings {
		if slices.Contains(cfg.Roles, RoleBootstrapper) && !sources[b.Exchange] && !left[b.Exchange] {
			sources[b.Exchange] = true
			out = append(out, Need{Access: Access{Operation: "read", Kind: topology.KindExchange, Name: b.Exchange, Role: RoleBootstrapper}, Binding: b})
		}
	}
	return distinct(out)
}

// binds are what it takes to make sure that a destination is bound before the first
// message goes that way, by binding it.
func binds(cfg Config) []Need {
	var out []Need
	for _, role := range []Role{RoleProducer, RoleConsumer} {
		if !slices.Contains(cfg.Roles, role) {
			continue
		}
		for _, d := range cfg.Want.Destinations {
			if role == RoleConsumer && d.ToExchange() {
				continue // what it retries goes to its queue
			}
			for _, deliver := range deliveries(cfg) {
				a := Access{Operation: "read", Kind: topology.KindExchange, Name: deliver, Role: role}
				out = append(out, Need{Access: a, Binding: topology.Binding{Exchange: deliver, Queue: d.TargetQueue(cfg.Prefix)}})
			}
		}
	}
	return out
}

// canaries are what it takes to prove, before the first message of a connection,
// that the broker delays by an instant.
func canaries(cfg Config) []Need {
	if !cfg.WantsInstants() {
		return nil
	}
	var out []Need
	queue, deliver := naming.CanaryQueue(cfg.Prefix)+"doctor", topology.DeliveryExchange(cfg.Prefix)
	for _, role := range []Role{RoleProducer, RoleConsumer} {
		if !slices.Contains(cfg.Roles, role) {
			continue
		}
		for _, op := range []string{"configure", "read"} {
			out = append(out, Need{Access: Access{Operation: op, Kind: topology.KindQueue, Name: queue, Role: role}})
		}
		out = append(out, Need{
			Access:  Access{Operation: "read", Kind: topology.KindExchange, Name: deliver, Role: role},
			Binding: topology.Binding{Exchange: deliver, Queue: queue},
		})
	}
	return out
}

// leftOut are the delay queues, and the exchanges of their names, that come after
// the first three of their layout.
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

// entries are the exchanges of strategies that messages are published into.
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

// distinct keeps each permission once, for the first role that needs it.
func distinct(all []Need) []Need {
	type asked struct {
		Access

		bound string
	}
	seen := map[asked]bool{}
	return slices.DeleteFunc(all, func(n Need) bool {
		key := asked{n.Access, n.Binding.Queue}
		key.Role = ""
		if seen[key] {
			return true
		}
		seen[key] = true
		return false
	})
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
			if len(names) > 0 {
				x.denied(role, op, names)
			}
		}
	}
}

func (x *examination) denied(role Role, op string, names []string) {
	why := map[Role]string{
		RoleProducer:     "Messages cannot be sent: the broker closes the channel of a publisher without the right to write.",
		RoleConsumer:     "A consumer cannot consume, or cannot retry and dead-letter, which leaves the message unacknowledged for ever.",
		RoleBootstrapper: "What is missing cannot be declared, neither by apply nor by clients (broker.declare: missing); clients that need not may say broker.declare: nothing.",
	}[role]
	var patterns []string
	for _, n := range names {
		if p := x.pattern(n); !slices.Contains(patterns, p) {
			patterns = append(patterns, p)
		}
	}
	x.found(Finding{
		ID: "permission-" + op, Severity: SeverityCritical, Objects: names,
		What: fmt.Sprintf("The user lacks the right to %s %s, which a %s needs.", op, list(names), role),
		Why:  why,
		Mend: x.ctl("set_permissions", "USER", "CONFIGURE", "WRITE", "READ") + fmt.Sprintf("   # with ^(%s)$ in %s; docs/permissions.md has the patterns for each role",
			strings.Join(first(patterns, shown), "|"), strings.ToUpper(op)),
	})
}

// pattern matches a name, and with that of a delay queue all of its layout: only
// some of them were looked at. Canaries have names of their own.
func (x *examination) pattern(name string) string {
	if canary := naming.CanaryQueue(x.cfg.Prefix); strings.HasPrefix(name, canary) {
		return regexp.QuoteMeta(canary) + ".*"
	}
	if l, ok := naming.LayoutOf(x.cfg.Prefix, name); ok && strings.HasPrefix(name, l.Name+".") && !strings.HasPrefix(name, l.Name+".level-") {
		return regexp.QuoteMeta(l.Name+".") + "[0-9][^.]*"
	}
	return regexp.QuoteMeta(name)
}

func first(names []string, n int) []string {
	if len(names) > n {
		return append(slices.Clone(names[:n]), "…")
	}
	return names
}
