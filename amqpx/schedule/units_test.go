package schedule

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// Numbers in the wrong unit are refused wherever a time or a duration is given, and the error says what was probably
// meant.
func TestWrongUnits(t *testing.T) {
	s, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	check(t, s.Schedule(t.Context(), db, Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(time.Hour)}))
	seconds, millis := time.UnixMilli(1_800_000_000), time.Unix(1_800_000_000_000, 0)
	schedule := func(x Task) error {
		x.ID, x.Queue = "b", "q"
		return s.Schedule(t.Context(), db, x)
	}
	unique := func(at time.Time, u Unique) error {
		_, err := s.ScheduleUnique(t.Context(), db, Task{ID: "b", Queue: "q", DeliverAt: at, UniqueKey: "k"}, u)
		return err
	}
	recurring := func(r Recurring) error {
		r.Name, r.Every, r.Task = "r", time.Minute, Task{Queue: "q"}
		return s.Recurring().Add(t.Context(), db, r)
	}
	bulk := func(a BulkAction, o BulkOptions) error { return s.CheckBulk(Filter{}, a, o) }
	in := time.Now().Add(time.Hour)
	const meant, unit = "was 2027-01-15T08:00:00Z meant", "30*time.Second"
	for name, x := range map[string]struct {
		err  error
		says string
	}{
		"schedule":             {schedule(Task{DeliverAt: seconds}), meant},
		"schedule far away":    {schedule(Task{DeliverAt: millis}), meant},
		"expires after":        {schedule(Task{DeliverAt: in, ExpiresAfter: 30}), unit},
		"unique":               {unique(seconds, Unique{}), meant},
		"max wait":             {unique(in, Unique{OnConflict: PushBackPending, MaxWait: 30}), unit},
		"cooldown":             {unique(in, Unique{Cooldown: 30}), unit},
		"reschedule":           {s.Reschedule(t.Context(), db, "a", seconds), meant},
		"reschedule by":        {s.RescheduleBy(t.Context(), db, "a", -30), unit},
		"revive":               {s.Revive(t.Context(), db, "a", millis), meant},
		"bulk to":              {bulk(BulkReschedule(seconds), BulkOptions{}), meant},
		"bulk by":              {bulk(BulkRescheduleBy(30), BulkOptions{}), unit},
		"bulk spread":          {bulk(BulkRunNow(), BulkOptions{Spread: 30}), unit},
		"bulk filter":          {s.CheckBulk(Filter{DueFrom: seconds}, BulkRunNow(), BulkOptions{}), meant},
		"count":                {func() error { _, err := s.Count(t.Context(), db, Filter{DueTo: millis}); return err }(), meant},
		"microseconds":         {schedule(Task{DeliverAt: time.UnixMicro(1_800_000_000)}), meant},
		"recurring from":       {recurring(Recurring{Start: seconds}), meant},
		"recurring until":      {recurring(Recurring{End: millis}), meant},
		"recurring and spread": {recurring(Recurring{Jitter: 30}), unit},
	} {
		if x.err == nil || !strings.Contains(x.err.Error(), x.says) {
			t.Errorf("%s: got %v, want an error with %q", name, x.err, x.says)
		}
	}
	check(t, schedule(Task{DeliverAt: time.UnixMilli(0)}))
	work := func(context.Context, *amqpx.Delivery, string) (Func, error) { return nil, nil }
	if LeaseHandler(db, work, WithLease(30)) != nil {
		t.Error("LeaseHandler with WithLease(30): got a handler, want nil")
	}
	if LeaseHandler(db, work, WithLease(time.Millisecond)) == nil {
		t.Error("LeaseHandler with a lease of 1 ms: got nil, want a handler with the shortest lease")
	}
}

// New refuses the nil client of a failed Open, although the interface that contains it is not nil.
func TestNilClient(t *testing.T) {
	var client *amqpx.Client
	_, db := openStore(t, nil, Config{})
	defer func() { _ = db.Close() }()
	_, err := New(db, client, Config{})
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "a nil *amqpx.Client") {
		t.Errorf(`New with a nil client: got %v, want ErrConfig with "a nil *amqpx.Client"`, err)
	}
}
