package topology

import (
	"fmt"
	"strconv"
	"strings"
)

// Systems that delay messages on queues of their own, which the dlx.Levels strategy
// uses too.
const (
	NServiceBus = "nservicebus"
	Celery      = "celery"
)

// ForeignLevels is how many queues each of them has.
const ForeignLevels = 28

// ForeignBinding is the beginning of the routing keys by which rabbitdelay binds
// destinations to a foreign delivery exchange: a word for each level. The other
// systems' own bindings begin with "#".
var ForeignBinding = strings.Repeat("*.", ForeignLevels)

// foreign are the names that a system gives its objects.
type foreign struct {
	system  string
	deliver string
	level   string // what stands before its number
	digits  string // how that is written
}

var foreigners = []foreign{
	{NServiceBus, "nsb.v2.delay-delivery", "nsb.v2.delay-level-", "%02d"},
	{Celery, "celery_delayed_delivery", "celery_delayed_", "%d"},
}

func foreignOf(system string) foreign {
	for _, f := range foreigners {
		if f.system == system {
			return f
		}
	}
	return foreign{}
}

// IsForeignLayout tells whether a layout is another system's.
func IsForeignLayout(layout string) bool { return foreignOf(layout).system != "" }

// ForeignDelivery is the exchange in which a system's levels end.
func ForeignDelivery(system string) string { return foreignOf(system).deliver }

// IsForeignDelivery tells whether an exchange is one in which a system's levels end.
func IsForeignDelivery(exchange string) bool {
	system, ok := Foreign(exchange)
	return ok && exchange == ForeignDelivery(system)
}

// ForeignLevel is the queue, and the exchange before it, that holds messages of a
// system for 2^level seconds.
func ForeignLevel(system string, level int) string {
	f := foreignOf(system)
	return f.level + fmt.Sprintf(f.digits, level)
}

// Foreign is the system that an exchange or a queue belongs to by its name. What
// belongs to one is never deleted.
func Foreign(name string) (system string, ok bool) {
	for _, f := range foreigners {
		if name == f.deliver {
			return f.system, true
		}
		text, found := strings.CutPrefix(name, f.level)
		if !found {
			continue
		}
		n, err := strconv.Atoi(text)
		if err == nil && n >= 0 && n < ForeignLevels && ForeignLevel(f.system, n) == name {
			return f.system, true
		}
	}
	return "", false
}

// DelaysOf is the name of the layout that a delay queue belongs to, as LayoutOf has
// it, or the other system's.
func DelaysOf(prefix, name string) (layout string, ok bool) {
	if l, ok := LayoutOf(prefix, name); ok {
		return l.Name, true
	}
	return Foreign(name)
}

// leads tells whether a binding leads from a foreign delivery exchange to a
// destination of rabbitdelay's.
func (b Binding) leads() bool {
	return IsForeignDelivery(b.Exchange) && b.Queue != "" && strings.HasPrefix(b.RoutingKey, ForeignBinding)
}
