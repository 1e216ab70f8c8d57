package schedule

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A task for a destination that is not allowed is refused when it is scheduled rather than weeks later when it is sent.
// The sender refuses it, or the store if it has no sender.
func TestUnlistedDestinationIsRefused(t *testing.T) {
	cfg := amqpx.Config{Declare: amqpx.DeclareListed, Destinations: []topology.Destination{{Queue: "orders"}}}
	c := newCalendar(t, 1)
	s := c.stores[0]
	s.cfg.Destination = cfg.Listed
	for queue, want := range map[string]string{"orders": "", "order": "these destinations may be used (declare: listed): orders"} {
		task := Task{ID: queue, Queue: queue, DeliverAt: time.Now().Add(29 * 24 * time.Hour)}
		err := s.Schedule(t.Context(), NoTx, task)
		_, named := errors.AsType[*TaskError](err)
		if want == "" && err != nil || want != "" && (!named || !strings.Contains(err.Error(), want)) {
			t.Errorf(`task for queue %s: got %v, want a *TaskError with %q ("" means no error)`, queue, err, want)
		}
		err = s.Recurring().Add(t.Context(), NoTx, Recurring{Name: queue, Cron: "@daily", Task: Task{Queue: queue}})
		_, named = errors.AsType[*RecurringError](err)
		if want == "" && err != nil || want != "" && (!named || !strings.Contains(err.Error(), want)) {
			t.Errorf(`recurring task for queue %s: got %v, want a *RecurringError with %q ("" means no error)`, queue, err, want)
		}
	}
}

// A pause and a rate limit are refused for a queue or an exchange that is not listed. The error suggests the most
// similar name.
func TestUnlistedDestinationIsNotHeldBack(t *testing.T) {
	cfg := amqpx.Config{Declare: amqpx.DeclareListed, Destinations: []topology.Destination{
		{Queue: "mail"}, {Exchange: "events", RoutingKey: "order.paid"},
	}}
	s := newCalendar(t, 1).stores[0]
	s.cfg.Destination = cfg.Listed
	for d, want := range map[topology.Destination]string{
		{Queue: "mail"}: "", {Exchange: "events"}: "",
		{Queue: "mial"}: "did you mean mail?", {Exchange: "event"}: "did you mean events?", {Exchange: "mail"}: "only these destinations may be used",
	} {
		paused := s.Pause(t.Context(), NoTx, d, "alice")
		bounded := s.SetRateLimit(t.Context(), NoTx, RateLimit{Queue: d.Queue, Exchange: d.Exchange, PerSecond: 5})
		for what, err := range map[string]error{"pause": paused, "rate limit": bounded} {
			if want == "" && err != nil {
				t.Errorf("%s of %s: got %v, want no error", what, d, err)
			}
			if want != "" && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s of %s: got %v, want ErrConfig with %q", what, d, err, want)
			}
		}
	}
	// Resuming such a destination, or removing its rate limit, is refused as well, unless it is held back.
	for d, want := range map[topology.Destination]string{
		{Queue: "mail"}: "", {Exchange: "events"}: "",
		{Queue: "mial"}: "did you mean mail?", {Exchange: "event"}: "did you mean events?", {Exchange: "mail"}: "only these destinations may be used",
	} {
		removeLimit := func() error {
			return s.SetRateLimit(t.Context(), NoTx, RateLimit{Queue: d.Queue, Exchange: d.Exchange})
		}
		resume := func() error { return s.Resume(t.Context(), NoTx, d, 0) }
		for what, do := range map[string]func() error{"removing the rate limit": removeLimit, "resuming": resume} {
			for range 2 {
				err := do()
				if want == "" && err != nil {
					t.Errorf("%s of %s: got %v, want no error", what, d, err)
				}
				if want != "" && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s of %s: got %v, want ErrConfig with %q", what, d, err, want)
				}
			}
		}
	}
	check(t, s.Pause(t.Context(), NoTx, topology.Destination{Queue: "mail"}, "alice"))
	check(t, s.SetRateLimit(t.Context(), NoTx, RateLimit{Exchange: "events", PerSecond: 5}))
	s.cfg.Destination = (&amqpx.Config{Declare: amqpx.DeclareListed, Destinations: []topology.Destination{{Queue: "orders"}}}).Listed
	if err := s.Resume(t.Context(), NoTx, topology.Destination{Queue: "mail"}, 0); err != nil {
		t.Errorf("Resume of a paused queue that is no longer listed: got %v, want no error", err)
	}
	if err := s.SetRateLimit(t.Context(), NoTx, RateLimit{Exchange: "events"}); err != nil {
		t.Errorf("removing the rate limit of an exchange that is no longer listed: got %v, want no error", err)
	}
	if list, err := s.Destinations(t.Context(), NoTx); err != nil || len(list) != 0 {
		t.Errorf("Destinations at the end: got %+v, %v, want none and no error", list, err)
	}
	s.cfg.Destination = func(d topology.Destination) error {
		if d.RoutingKey == "" {
			return topology.ErrDestination
		}
		return nil
	}
	if err := s.Pause(t.Context(), NoTx, topology.Destination{Exchange: "any"}, ""); err != nil {
		t.Errorf("Pause of a whole exchange, with a check that needs a routing key: got %v, want no error", err)
	}
}
