package status

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

func TestWhoSends(t *testing.T) {
	now := time.Now()
	silent := taskview.Relay{Name: "dead:1", Seen: now.Add(-time.Hour)}
	running := taskview.Relay{Name: "a:2", Seen: now.Add(time.Minute)}
	for want, relays := range map[string][]taskview.Relay{
		"which relays run on this database is unknown": nil,
		"no relay runs on this database":               {},
		silent.Silent(now):                             {silent},
		"a relay is running, and its log says why a task is not sent: host a, pid 2": {running, silent},
		"2 relays are running; their logs say why a task is not sent":                {running, {Name: "b:2", Seen: now.Add(-3 * time.Second)}, silent},
	} {
		if got := WhoSends(relays, now); got != want {
			t.Errorf("WhoSends returned\n%s, want\n%s", got, want)
		}
	}
}
