package amqpx

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestListed(t *testing.T) {
	c := &Client{cfg: Config{Declare: DeclareListed, Destinations: []topology.Destination{
		{Queue: "orders.expire", DeadLetter: "orders.failed"}, {Queue: "mail"}, {Exchange: "events", RoutingKey: "post.publish"},
	}}}
	for _, d := range []topology.Destination{
		{Queue: "orders.expire"}, {Queue: "orders.failed"}, {Queue: "mail.dead"}, {Exchange: "events", RoutingKey: "post.publish"},
	} {
		if err := c.listed(d); err != nil {
			t.Errorf("listed(%+v) = %v, want no error", d, err)
		}
	}
	for _, d := range []topology.Destination{{Queue: "order.expire"}, {Exchange: "events", RoutingKey: "post.publsh"}} {
		if err := c.cfg.Listed(d); !errors.Is(err, topology.ErrDestination) {
			t.Errorf("Listed(%+v) = %v, want topology.ErrDestination", d, err)
		}
		err := c.listed(d)
		if !errors.Is(err, topology.ErrDestination) || !strings.HasSuffix(err.Error(), "(declare: listed): orders.expire, mail, events:post.publish") {
			t.Errorf(`listed(%+v) = %v, want topology.ErrDestination that ends with "(declare: listed): orders.expire, mail, events:post.publish"`, d, err)
		}
	}
	for i := range 2 * maxNamed {
		c.cfg.Destinations = append(c.cfg.Destinations, topology.Destination{Queue: fmt.Sprint("q", i)})
	}
	if err := c.listed(topology.Destination{Queue: "invoices"}); err == nil || !strings.HasSuffix(err.Error(), ", q6 and 13 more") {
		t.Errorf(`an unlisted queue among many listed ones: got %v, want an error that ends with ", q6 and 13 more"`, err)
	}
	c.cfg.Declare = DeclareMissing
	if err := c.listed(topology.Destination{Queue: "any"}); err != nil {
		t.Errorf("an unlisted queue with DeclareMissing: got %v, want no error", err)
	}
}
