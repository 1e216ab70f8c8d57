package schedule

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/dlx"
)

// A task that can never be sent is refused when it is scheduled, instead of failing when it is due.
func TestScheduleRefusesUnsendableTasks(t *testing.T) {
	headers := map[string]string{}
	for i := range 200 {
		headers[fmt.Sprint("h", i)] = strings.Repeat("x", 1000)
	}
	tasks := map[string]Task{
		"Queue":   {Queue: strings.Repeat("q", 250)},
		"Headers": {Queue: "q", Headers: headers},
	}
	alone, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	refused := func(t *testing.T, s *Store, field string, task Task) {
		t.Helper()
		task.ID, task.DeliverAt = "a", time.Now().Add(20*365*24*time.Hour)
		err := s.Schedule(t.Context(), NoTx, task)
		if te, ok := errors.AsType[*TaskError](err); !ok || te.Field != field {
			t.Errorf("Schedule: got %v, want a *TaskError about the field %s", err, field)
		}
	}
	for field, task := range tasks {
		refused(t, alone, field, task)
	}
	onSite(t, Config{}, func(t *testing.T, s *site) {
		for field, task := range tasks {
			refused(t, s.Store, field, task)
		}
		refused(t, s.Store, "Queue", Task{Queue: "delay.parked"})
		refused(t, s.Store, "Queue", Task{Queue: strings.Repeat("q", 240)}) // too long for the clock layout's digits
		s.schedule(Task{ID: "a", Queue: strings.Repeat("q", 220), DeliverAt: time.Now().Add(20 * 365 * 24 * time.Hour)})
	})
}

// strategic is a sender that has a strategy, like a client.
type strategic struct {
	recorder

	s amqpx.Strategy
}

func (s *strategic) Strategy() amqpx.Strategy { return s.s }

// New refuses a strategy with only declared delays, because tasks with other delays would fail permanently.
func TestDeclaredDelaysCannotRelay(t *testing.T) {
	_, db := openStore(t, &recorder{}, Config{})
	defer func() { _ = db.Close() }()
	for _, roundUp := range []bool{false, true} {
		ttl, err := dlx.NewTTL(dlx.TTLConfig{Delays: []time.Duration{time.Minute}, RoundUp: roundUp})
		check(t, err)
		if _, err := New(db, &strategic{s: ttl}, Config{}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "bucket") {
			t.Errorf("New with roundUp = %t: got %v, want ErrConfig that recommends bucket", roundUp, err)
		}
	}
}
