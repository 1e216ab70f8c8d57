// Package foreign knows the delays of other systems by the names of their objects:
// the queues on which NServiceBus and Celery delay messages, and which the strategy
// dlx.Levels uses too. It knows nothing of rabbitdelay's own objects.
package foreign

import (
	"fmt"
	"strconv"
	"strings"
)

// Systems that delay messages on queues of their own.
const (
	NServiceBus = "nservicebus"
	Celery      = "celery"
)

// Levels is how many delay queues each system has.
const Levels = 28

// Binding begins the routing keys by which rabbitdelay binds destinations to a foreign
// delivery exchange: a word for each level. The other systems' own bindings begin
// with "#".
var Binding = strings.Repeat("*.", Levels)

// scheme is how a system names its objects.
type scheme struct {
	system  string
	deliver string
	level   string // what stands before a level's number
	digits  string // the format of that number
}

var schemes = []scheme{
	{NServiceBus, "nsb.v2.delay-delivery", "nsb.v2.delay-level-", "%02d"},
	{Celery, "celery_delayed_delivery", "celery_delayed_", "%d"},
}

func schemeOf(system string) scheme {
	for _, s := range schemes {
		if s.system == system {
			return s
		}
	}
	return scheme{}
}

// IsLayout reports whether a layout is another system's.
func IsLayout(layout string) bool { return schemeOf(layout).system != "" }

// Delivery returns the exchange in which a system's levels end.
func Delivery(system string) string { return schemeOf(system).deliver }

// IsDelivery reports whether an exchange is one in which a system's levels end.
func IsDelivery(exchange string) bool {
	system, ok := System(exchange)
	return ok && exchange == Delivery(system)
}

// Level returns the queue, and the exchange before it, that holds messages of a
// system for 2^level seconds.
func Level(system string, level int) string {
	s := schemeOf(system)
	return s.level + fmt.Sprintf(s.digits, level)
}

// System returns the system that an exchange or a queue belongs to by its name. What
// belongs to one is never deleted.
func System(name string) (system string, ok bool) {
	for _, s := range schemes {
		if name == s.deliver {
			return s.system, true
		}
		number, ok := strings.CutPrefix(name, s.level)
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < Levels && Level(s.system, n) == name {
			return s.system, true
		}
	}
	return "", false
}
