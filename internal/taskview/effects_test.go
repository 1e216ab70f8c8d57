package taskview

import (
	"slices"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

func TestEffects(t *testing.T) {
	s, db := openStore(t, schedule.Config{})
	_, err := db.ExecContext(t.Context(), `INSERT INTO rabbitdelay_effects (task_id, version, created_at, queue, done_at, attempts, lease_until) VALUES
		('1', 2, 5, 'mails', NULL, 3, 7000), ('1', 1, 5, 'orders', 6000, 0, 0), ('1', 1, 5, 'mails', 8000, 1, 0), ('2', 1, 5, 'mails', 9000, 0, 0)`)
	check(t, err)
	got, err := s.Effects(t.Context(), "1")
	check(t, err)
	want := []Effect{
		{Version: 1, Queue: "mails", DoneAt: time.UnixMilli(8000), Attempts: 1},
		{Version: 1, Queue: "orders", DoneAt: time.UnixMilli(6000)},
		{Version: 2, Queue: "mails", Attempts: 3, LeaseUntil: time.UnixMilli(7000)},
	}
	if !slices.Equal(got, want) {
		t.Errorf("Effects:\ngot  %+v\nwant %+v", got, want)
	}
	if got, err := s.Effects(t.Context(), "none"); err != nil || len(got) != 0 {
		t.Errorf("Effects of an unknown task: got %+v, %v, want none and no error", got, err)
	}
}

func TestTags(t *testing.T) {
	s, _ := openStore(t, schedule.Config{})
	task := schedule.Task{ID: "a", Queue: "q", DeliverAt: time.Now().Add(time.Hour), Tags: []string{"b", "a"}}
	check(t, s.Schedule(t.Context(), schedule.NoTx, task))
	got, err := s.Tags(t.Context(), 1)
	check(t, err)
	if !slices.Equal(got, []string{"a"}) {
		t.Errorf(`Tags with a limit of 1: got %q, want ["a"]`, got)
	}
}
