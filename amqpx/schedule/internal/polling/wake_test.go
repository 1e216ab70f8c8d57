package polling

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// A task that is due soon makes the relay poll, and poll again later in case the task is not committed yet. A relay
// that will be notified of the commit waits for the notification instead.
func TestDue(t *testing.T) {
	var db sqldb.DB
	clock := NewClock(time.Now, nil, nil)
	p := New(clock, 5*time.Second, time.Minute, false)
	defer p.Begin(db)()
	for _, tc := range []struct {
		name      string
		listening bool
		in        time.Duration
		wakes     bool
	}{
		{"due soon", false, time.Second, true},
		{"due soon, notified", true, time.Second, false},
		{"due within two intervals, but too late to be notified", true, 8 * time.Second, true},
		{"due later", false, time.Minute, false},
		{"due later, notified", true, time.Minute, false},
	} {
		p.Listening.Store(tc.listening)
		p.Due(db, time.Now().Add(tc.in).UnixMilli())
		woken := false
		select {
		case <-p.Woken:
			woken = true
		default:
		}
		if again := p.Uncommitted.Swap(false); woken != tc.wakes || again != tc.wakes {
			t.Errorf("%s: got woken = %t and polls again = %t, want both %t", tc.name, woken, again, tc.wakes)
		}
	}
	p.Committed()
	if <-p.Woken; p.Uncommitted.Load() {
		t.Error("Uncommitted after a notification: got true, want false, because one poll is enough")
	}
}
