package plugin

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// MaxDelay is the longest delay that the plugin supports: 2^32-1 ms, about 49.7 days. The plugin delivers a message
// with a longer delay immediately.
const MaxDelay = math.MaxUint32 * time.Millisecond

// HeaderDelay is the header in which the plugin expects the delay, in milliseconds. The value is negative when the
// message is delivered.
const HeaderDelay = "x-delay"

const (
	exchangeKind = "x-delayed-message"
	tag          = "plugin"
	overhead     = len(tag) + 1
)

// Config configures the plugin strategy.
type Config struct {
	// Prefix is the start of the names of all broker objects. Default "delay".
	Prefix string
	// MaxDelay is the longest delay that Route accepts, in whole milliseconds from 1ms to 2^32-1 ms. Default 2^32-1 ms.
	// The plugin needs about 3 kB of memory per waiting message, on one node, so consider a lower limit.
	MaxDelay time.Duration
}

// withDefaults returns the configuration with defaults for unset fields.
func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = topology.DefaultPrefix
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = MaxDelay
	}
	return c
}

// validate applies the defaults and checks the configuration. It reports every invalid field as a *topology.FieldError
// in the joined error.
func (c Config) validate() error {
	c = c.withDefaults()
	var errs []error
	if err := topology.CheckPrefix(c.Prefix); err != nil {
		if f, ok := errors.AsType[*topology.FieldError](err); ok {
			f.Of = "plugin"
		}
		errs = append(errs, err)
	}
	if c.MaxDelay < time.Millisecond || c.MaxDelay > MaxDelay || c.MaxDelay%time.Millisecond != 0 {
		errs = append(errs, &topology.FieldError{
			Of: "plugin", Field: "MaxDelay", Value: c.MaxDelay,
			Want: "whole milliseconds from 1ms to " + topology.FormatDuration(MaxDelay) + " (2^32-1 ms)",
		})
	}
	return errors.Join(errs...)
}

// Strategy delays messages with an x-delayed-message exchange. It implements amqpx.Strategy and is safe for concurrent
// use. The zero value is not usable; use New. To find out whether a broker has the plugin, use live.ProbePlugin.
//
// The plugin keeps waiting messages in a table of the node that received them. The messages are not replicated and
// cannot be counted per destination.
type Strategy struct {
	prefix   string
	exchange string
	deliver  string
	max      time.Duration
}

// New returns the plugin strategy for a configuration. Its error joins a
// *topology.FieldError for each invalid field.
func New(c Config) (*Strategy, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Strategy{
		prefix:   c.Prefix,
		exchange: exchangeName(c.Prefix),
		deliver:  topology.DeliveryExchange(c.Prefix),
		max:      c.MaxDelay,
	}, nil
}

// exchangeName returns the name of the delayed exchange.
func exchangeName(prefix string) string { return prefix + ".plugin" }

// Name returns "plugin".
func (s *Strategy) Name() string { return "plugin" }

// Prefix returns the start of the names of all broker objects.
func (s *Strategy) Prefix() string { return s.prefix }

// MaxDelay returns the configured maximum delay.
func (s *Strategy) MaxDelay() time.Duration { return s.max }

// Topology returns the delivery exchange and one delayed exchange bound to it. The delayed exchange has no alternate
// exchange. The plugin reports every message that it holds as unrouted, so an alternate exchange would receive every
// message immediately.
func (s *Strategy) Topology() topology.Topology {
	t := topology.DeliveryTopology(s.prefix)
	t.Exchanges = append(t.Exchanges, topology.Exchange{
		Name: s.exchange, Kind: exchangeKind,
		Arguments: map[string]any{argument.DelayedType: "topic"},
	})
	t.Bindings = append(t.Bindings, topology.Binding{Exchange: s.exchange, ToExchange: s.deliver, RoutingKey: "#"})
	return t
}

// Bindings returns the binding of the destination's target queue to the delivery exchange. Bindings does not check the
// destination; Route does.
func (s *Strategy) Bindings(dest topology.Destination) []topology.Binding {
	return []topology.Binding{{
		Exchange:   s.deliver,
		Queue:      dest.TargetQueue(s.prefix),
		RoutingKey: tag + "." + dest.Key(s.prefix),
	}}
}

// Route returns the exchange, the routing key and the x-delay header for delay, rounded up to whole milliseconds. A
// tolerance has no effect, because the plugin's delays are exact.
//
// It returns a *topology.DelayError for a negative delay or tolerance and for a delay over MaxDelay, a
// *topology.DestinationError for an invalid destination or one that belongs to a strategy, and a *topology.KeyError for
// a destination whose name is too long for a routing key. Errors about the destination do not depend on the delay.
func (s *Strategy) Route(dest topology.Destination, delay, tolerance time.Duration) (topology.Route, error) {
	if err := dest.Validate(s.prefix); err != nil {
		return topology.Route{}, fmt.Errorf("plugin strategy: %w", err)
	}
	key := dest.Key(s.prefix)
	if len(key)+overhead > topology.MaxRoutingKey {
		return topology.Route{}, &topology.KeyError{Strategy: s.Name(), Key: key, Overhead: overhead}
	}
	if err := s.check(delay, tolerance); err != nil {
		return topology.Route{}, err
	}
	r := topology.Route{RoutingKey: tag + "." + key}
	if delay == 0 {
		r.Exchange, r.Mandatory = s.deliver, true
		return r, nil
	}
	ms := int64((delay-1)/time.Millisecond) + 1
	r.Exchange = s.exchange
	r.Headers = map[string]any{HeaderDelay: ms}
	r.Delay = time.Duration(ms) * time.Millisecond
	return r, nil
}

func (s *Strategy) check(delay, tolerance time.Duration) error {
	e := &topology.DelayError{Strategy: s.Name(), Delay: delay, Max: s.max}
	switch {
	case delay < 0:
		e.Reason, e.Hint = "is negative", "send without a delay"
	case tolerance < 0:
		e.Reason = "has the negative tolerance " + topology.FormatDuration(tolerance)
		e.Hint = "expected a tolerance of 0 or more: how much later the message may be"
	case delay > s.max:
		e.Reason, e.Hint = "exceeds the configured maximum", "use the bucket strategy, which supports delays of up to a year"
	default:
		return nil
	}
	return e
}
