// Package foreign recognises the delay objects of other systems by their names: the queues with which NServiceBus and
// Celery delay messages, and which the strategy dlx.Levels can use. It does not handle rabbitdelay's own objects.
package foreign

import (
	"fmt"
	"strconv"
	"strings"
)

// These systems delay messages in their own queues, which the strategy dlx.Levels can use.
const (
	NServiceBus = "nservicebus"
	Celery      = "celery"
)

// HeaderNServiceBusDelay is the header of messages that NServiceBus delays. Its value is the delay in seconds, as an
// int32.
const HeaderNServiceBusDelay = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"

// Levels is the number of delay queues of each system.
const Levels = 28

// Binding is the prefix of the routing keys with which rabbitdelay binds destinations to a foreign delivery exchange.
// It has one wildcard word for each level. The other systems' own bindings begin with "#".
var Binding = strings.Repeat("*.", Levels)

// scheme contains a system's naming scheme.
type scheme struct {
	system  string
	deliver string
	level   string // precedes the level's number in the name of a level's queue and exchange
	digits  string // the format of that number, for fmt
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

// IsLayout reports whether a layout belongs to another system.
func IsLayout(layout string) bool { return schemeOf(layout).system != "" }

// Delivery returns the name of the exchange to which a system's lowest level delivers messages.
func Delivery(system string) string { return schemeOf(system).deliver }

// IsDelivery reports whether an exchange is the delivery exchange of another system.
func IsDelivery(exchange string) bool {
	system, ok := System(exchange)
	return ok && exchange == Delivery(system)
}

// Level returns the name of the queue in which messages of a system wait for 2^level seconds, and of the exchange in
// front of it.
func Level(system string, level int) string {
	s := schemeOf(system)
	return s.level + fmt.Sprintf(s.digits, level)
}

// System returns the system to which an exchange or a queue belongs according to its name. Objects of other systems
// are never deleted.
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
