package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// WhoSends describes which relays currently send tasks or, if none does, when the last one was seen. It takes the
// result of taskview.Store.Relays. A nil list means that the relays are unknown.
func WhoSends(relays []taskview.Relay, now time.Time) string {
	running := slices.DeleteFunc(slices.Clone(relays), func(r taskview.Relay) bool { return !r.Running(now) })
	switch {
	case relays == nil:
		return "which relays run on this database is unknown"
	case len(relays) == 0:
		return "no relay runs on this database"
	case len(running) == 0:
		return relays[0].Silent(now)
	}
	if n := len(running); n > 1 {
		return fmt.Sprintf("%d relays are running; their logs say why a task is not sent", n)
	}
	return "a relay is running, and its log says why a task is not sent: " + running[0].String()
}
