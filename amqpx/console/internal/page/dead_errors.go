package page

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
)

// deadErrorsData are the messages of a whole queue by their errors.
type deadErrorsData struct {
	inspect.ErrorGroups

	Orders []groupOrder
	Rows   []errorRow
}

type groupOrder struct {
	Label, Href string
	Chosen      bool
}

type errorRow struct {
	inspect.ErrorGroup

	Requeue, Discard string // the forms that have this group chosen
}

// groupOrders are in the order of their links.
var groupOrders = []struct {
	is    inspect.GroupOrder
	label string
}{{inspect.GroupsNewest, "Newest first"}, {inspect.GroupsOldest, "Oldest first"}, {inspect.GroupsMost, "Most first"}}

func (p *Pages) deadErrors(r *request) (answer, error) {
	queue, order := r.form.Get("queue"), inspect.GroupOrder(r.get("order"))
	if order == "" {
		order = inspect.GroupsNewest
	}
	d := deadErrorsData{}
	known := false
	for _, o := range groupOrders {
		d.Orders = append(d.Orders, groupOrder{o.label, link("dead-errors", "queue", queue, "order", string(o.is)), o.is == order})
		known = known || o.is == order
	}
	if !known {
		return answer{}, fieldError("order", "%q; expected newest, oldest or most", order)
	}
	var err error
	if d.ErrorGroups, err = p.svc.ErrorGroups(r.Context(), queue, order, inspect.DefaultGroups); err != nil {
		return answer{}, err
	}
	for _, g := range d.Groups {
		form := func(page string) string {
			return link(page, "queue", queue, "reason", g.Reason, "destination", g.Destination, "error-like", g.ErrorLike)
		}
		d.Rows = append(d.Rows, errorRow{g, form("requeue"), form("discard")})
	}
	return answer{name: "dead-errors", title: "Errors in " + shown.Line(shown.Shorten(queue, 40)), data: d}, nil
}
