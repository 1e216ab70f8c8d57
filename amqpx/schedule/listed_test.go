package schedule

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// A destination that may not be used is refused when a task is scheduled, and not
// weeks later when it is sent: by the sender, and in a store without one.
func TestUnlistedDestinationIsRefused(t *testing.T) {
	cfg := amqpx.Config{Declare: amqpx.DeclareListed, Destinations: []topology.Destination{{Queue: "orders"}}}
	c := newCalendar(t, 1)
	s := c.stores[0]
	s.cfg.Destination = cfg.Listed
	for queue, want := range map[string]string{"orders": "", "order": "only those may be used (declare: listed): orders"} {
		task := Task{ID: queue, Queue: queue, DeliverAt: time.Now().Add(29 * 24 * time.Hour)}
		err := s.Schedule(t.Context(), NoTx, task)
		_, named := errors.AsType[*TaskError](err)
		if want == "" && err != nil || want != "" && (!named || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", queue, err)
		}
		err = s.Schedules().Add(t.Context(), NoTx, Recurring{Name: queue, Cron: "@daily", Task: Task{Queue: queue}})
		_, named = errors.AsType[*RecurringError](err)
		if want == "" && err != nil || want != "" && (!named || !strings.Contains(err.Error(), want)) {
			t.Errorf("recurring, %s: %v", queue, err)
		}
	}
}
