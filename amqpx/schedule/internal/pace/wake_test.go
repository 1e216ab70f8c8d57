package pace

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// A relay that is notified of commits does not poll before them. It polls for tasks without a notification.
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
		{"due within two intervals, too late for a notification", true, 8 * time.Second, true},
		{"due later", false, time.Minute, false},
		{"due later, notified of others", true, time.Minute, false},
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
			t.Errorf("%s: woken %t, and again later %t, want %t", tc.name, woken, again, tc.wakes)
		}
	}
	p.Committed()
	if <-p.Woken; p.Uncommitted.Load() {
		t.Error("a notification about a commit makes the relay poll several times, want once")
	}
}
