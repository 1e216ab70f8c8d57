package messages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
	"github.com/rabbitdelay/rabbitdelay/internal/foreign"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// doorway checks the state of a broker before a command that a user runs by hand changes it.
type doorway struct {
	*app.App

	c    *config.Config
	conn *amqp.Connection
}

// knock connects to the broker. If the broker does not answer, knock returns the error immediately. A service would
// keep trying, but a user should see the error.
func knock(ctx context.Context, a *app.App, c *config.Config) (*doorway, error) {
	conn, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return &doorway{a, c, conn}, nil
}

func (d *doorway) close() { app.Close(d.conn) }

// has reports whether a passive declaration succeeds. An object that the user has no access to is assumed to exist.
func (d *doorway) has(look func(*amqp.Channel) error) (bool, error) {
	ch, err := channels.Open(d.conn)
	if err != nil {
		return false, err
	}
	defer func() { _ = ch.Close() }()
	err = look(ch)
	ae, refused := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil, refused && (ae.Code == amqp.AccessRefused || ae.Code == amqp.ResourceLocked):
		return true, nil
	case refused && ae.Code == amqp.NotFound:
		return false, nil
	}
	return false, err
}

func (d *doorway) hasQueue(name string) (bool, error) {
	return d.has(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
}

// hasOneOf reports whether one of the exchanges exists. Of more than three, it checks only the first, the middle and
// the last, which is enough to find a layout that was partly deleted.
func (d *doorway) hasOneOf(exchanges ...string) (bool, error) {
	if n := len(exchanges); n > 3 {
		exchanges = []string{exchanges[0], exchanges[n/2], exchanges[n-1]}
	}
	for _, name := range exchanges {
		there, err := d.has(func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil)
		})
		if there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// layout announces what declaring the strategy's topology will create, and asks for consent if that may be unintended,
// most often because -f was forgotten. If it cannot ask and the broker has another layout, it returns an error. It
// prints nothing if the layout exists.
func (d *doorway) layout(s amqpx.Strategy, yes bool) error {
	prefix := d.c.Delay.Prefix
	if d.c.Broker.Declare == amqpx.DeclareNothing {
		return nil
	}
	t := s.Topology()
	own := ownExchanges(t, prefix)
	if there, err := d.hasOneOf(own...); there || err != nil {
		return err
	}
	other, err := d.otherLayout(prefix)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("the %s strategy (%s), %d queues and %d exchanges whose names begin with %q",
		s.Name(), layoutsOf(own, prefix), len(t.Queues), len(t.Exchanges), prefix+".")
	if system := s.Name(); foreign.IsLayout(system) {
		what = fmt.Sprintf("the delay queues in the layout of %s, %d queues and %d exchanges", system, len(t.Queues), len(t.Exchanges))
	}
	addition := ""
	if other != "" {
		addition = fmt.Sprintf(", in addition to %s, which exists with the same prefix", other)
	}
	switch chosen := d.c.DelayGiven(); {
	case yes, chosen:
	case d.Interactive():
		return d.Confirm(app.Question{Text: "This declares " + what + addition + ". Type yes: ", Declined: "nothing was declared; give the file of the layout with -f"})
	case other != "":
		return fmt.Errorf("the broker has %s; the defaults need %s, which do not exist; give the layout's file with -f, or --yes to declare the default layout in addition", other, what)
	}
	d.Notef("declaring %s%s", what, addition)
	return nil
}

// otherLayout names the existing layout with this prefix. It returns an empty string if there is none.
func (d *doorway) otherLayout(prefix string) (string, error) {
	there, err := d.hasOneOf(topology.DeliveryExchange(prefix))
	if !there || err != nil {
		return "", err
	}
	for _, layout := range []string{dlx.LayoutClock, dlx.LayoutHex, dlx.LayoutBinary} {
		for _, qt := range []topology.QueueType{topology.Quorum, topology.Classic} {
			b, err := dlx.NewBucket(dlx.BucketConfig{Prefix: prefix, Layout: layout, QueueType: qt})
			if err != nil {
				return "", err
			}
			own := ownExchanges(b.Topology(), prefix)
			if there, err := d.hasOneOf(own...); err != nil {
				return "", err
			} else if there {
				return "the layout " + layoutsOf(own, prefix), nil
			}
		}
	}
	return "another layout", nil
}

// ownExchanges returns the exchanges that only this layout has.
func ownExchanges(t topology.Topology, prefix string) []string {
	var names []string
	for _, e := range t.Exchanges {
		if _, ok := naming.DelaysOf(prefix, e.Name); ok {
			names = append(names, e.Name)
		}
	}
	return names
}

// layoutsOf returns the names of the exchanges' layouts, as doctor and destroy show them.
func layoutsOf(exchanges []string, prefix string) string {
	var names []string
	for _, e := range exchanges {
		if layout, ok := naming.DelaysOf(prefix, e); ok && !slices.Contains(names, layout) {
			names = append(names, layout)
		}
	}
	return strings.Join(names, ", ")
}

// listed returns the file's destination for a queue. If the file has none, it returns a destination with the queue and
// defaults.
func (d *doorway) listed(queue string) topology.Destination {
	for _, x := range d.c.Topology.Destinations {
		if x.Queue == queue {
			return x
		}
	}
	return topology.Destination{Queue: queue}
}

// missing returns the queues that a destination needs but the broker does not have.
func (d *doorway) missing(dest topology.Destination) ([]string, error) {
	needs := []string{dest.TargetQueue(d.c.Delay.Prefix)}
	if !dest.ToExchange() && (d.c.Delay.Strategy != config.StrategyBucket || !foreign.IsLayout(d.c.Delay.Bucket.Layout)) {
		needs = append(needs, d.listed(dest.Queue).DeadLetterQueue())
	}
	var names []string
	for _, q := range needs {
		if there, err := d.hasQueue(q); err != nil {
			return nil, err
		} else if !there {
			names = append(names, q)
		}
	}
	return names, nil
}

// created reports the queues that a command has created, because a misspelt queue may have no consumer.
func created(a *app.App, c *config.Config, names []string) {
	if len(names) == 0 {
		return
	}
	var known []string
	for _, d := range c.Topology.Destinations {
		known = append(known, d.Queue)
	}
	hint := naming.DidYouMean(names[0], known)
	if slices.Contains(known, names[0]) {
		hint = ""
	}
	noun := "queue"
	if len(names) > 1 {
		noun = "queues"
	}
	a.Notef("created %s %s%s", noun, strings.Join(names, " and "), hint)
}
