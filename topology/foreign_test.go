package topology

import (
	"strings"
	"testing"
	"time"
)

// levels are two of Celery's, with destinations bound by us and by it.
func levels() Topology {
	t := ParkedTopology("delay")
	t.Exchanges = append(t.Exchanges, Exchange{Name: "celery_delayed_delivery", Kind: "topic"})
	for i, next := range []string{"celery_delayed_delivery", "celery_delayed_0"} {
		name, ttl := ForeignLevel(Celery, i), time.Second<<i
		t.Exchanges = append(t.Exchanges, Exchange{Name: name, Kind: "topic"})
		t.Queues = append(t.Queues, Queue{Name: name, MessageTTL: &ttl, DeadLetter: &DeadLetter{Exchange: next}})
		t.Bindings = append(t.Bindings, Binding{Exchange: name, Queue: name, RoutingKey: "1.#"}, Binding{Exchange: name, ToExchange: next, RoutingKey: "0.#"})
	}
	t.Queues = append(t.Queues, Queue{Name: "celery"})
	t.Bindings = append(t.Bindings,
		Binding{Exchange: "celery_delayed_delivery", Queue: "celery", RoutingKey: ForeignBinding + "celery"},
		Binding{Exchange: "celery_delayed_delivery", Queue: "celery", RoutingKey: "#.celery"})
	return t
}

// Whatever is asked for, another system's objects stay, and so do its bindings. Ours
// go, unless a message may need them.
func TestForeignObjectsStay(t *testing.T) {
	messages := int64(5)
	opts := RemovalOptions{Destinations: true, Force: true, Messages: &messages, Layouts: []string{"celery", "celery_delayed_0"}}
	for _, waiting := range []int64{0, 3} {
		r := PlanRemoval(levels(), applied(t, levels()).holding("celery_delayed_1", waiting, 0), opts)
		for _, s := range r.Steps {
			_, theirs := Foreign(s.Name + s.Binding.Exchange)
			if s.Kind == KindBinding {
				_, theirs = Foreign(s.Binding.Exchange)
			}
			ours := strings.HasPrefix(s.Binding.RoutingKey, ForeignBinding)
			switch {
			case ours && (s.Action == ActionDelete) != (waiting == 0):
				t.Errorf("%d messages wait: %s %s: %s %s", waiting, s.Kind, s.Name, s.Action, s.Reason)
			case theirs && !ours && (s.Action != ActionKeep || s.Reason == ""):
				t.Errorf("%s %s: %s %s", s.Kind, s.Name, s.Action, s.Reason)
			}
		}
	}
}

func TestForeignNames(t *testing.T) {
	for name, want := range map[string]string{
		"nsb.v2.delay-level-00": NServiceBus, "nsb.v2.delay-level-27": NServiceBus, "nsb.v2.delay-delivery": NServiceBus,
		"celery_delayed_0": Celery, "celery_delayed_27": Celery, "celery_delayed_delivery": Celery,
		"nsb.v2.delay-level-28": "", "nsb.v2.delay-level-0": "", "nsb.delay-level-00": "", "celery_delayed_28": "",
		"celery_delayed_07": "", "celery_delayed_+7": "", "celery_delayed_": "", "celery": "", "": "",
	} {
		if got, ok := Foreign(name); got != want || ok != (want != "") || Reserved("delay", name) != ok {
			t.Errorf("%q is %q's, %t; want %q", name, got, ok, want)
		}
	}
}
