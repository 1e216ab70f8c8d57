//go:build !race

package schedule

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A store that runs for 30 virtual days sends the task of each day once, within the horizon before its due time. It
// executes so few statements that this takes seconds, or half a minute with the race detector.
func TestVirtualMonth(t *testing.T) {
	const days, day = 30, 24 * time.Hour
	// With a horizon of an hour, a task waits in the table until then. No message is lost here, so none is sent again.
	paced(t, Config{Horizon: time.Hour, Grace: 100 * day}, func(t *testing.T, s, _ *Store, r *recorder, asked *counting) {
		due := map[string]time.Time{}
		for i := range days {
			id := fmt.Sprintf("day %d", i+1)
			due[id] = time.Now().Add(time.Duration(i)*day + 12*time.Hour)
			check(t, s.Schedule(t.Context(), NoTx, Task{ID: id, Queue: "q", DeliverAt: due[id]}))
		}
		<-time.After(days * day)
		synctest.Wait()
		for _, x := range r.receipts() {
			at, ok := due[x.m.ID]
			if !ok {
				t.Errorf("%s was sent twice or was not scheduled, want each task once", x.m.ID)
				continue
			}
			delete(due, x.m.ID)
			if early := at.Sub(x.at); early < 0 || early > time.Hour {
				t.Errorf("%s was sent %v before it was due, want at most an hour and not later", x.m.ID, early)
			}
			if !x.m.DeliverAt.Equal(at) {
				t.Errorf("%s was sent with the due time %v, want %v", x.m.ID, x.m.DeliverAt, at)
			}
		}
		for id := range due {
			t.Errorf("%s was not sent, want it within the month", id)
		}
		if n := asked.statements.Load(); n > 75_000 {
			t.Errorf("the store executed %d statements in %d days, want at most 75000", n, days)
		}
	})
}
