package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// RelaySilence is how long a relay that runs may at most be unseen: it says every 10
// seconds that it does.
const RelaySilence = 20 * time.Second

// Relay is a process whose Store.Run works on the database, or has died there within
// a week. One that ended leaves nothing behind.
type Relay struct {
	Name    string    `json:"name"`    // host:process
	Version string    `json:"version"` // of rabbitdelay; empty if the build does not have it
	Started time.Time `json:"started"`
	Seen    time.Time `json:"seen"` // by the database's clock
}

// Running reports whether the relay was seen within RelaySilence.
func (r Relay) Running(now time.Time) bool { return now.Sub(r.Seen) <= RelaySilence }

// place is where to look for the process.
func (r Relay) place() string {
	host, pid, _ := strings.Cut(r.Name, ":")
	return fmt.Sprintf("host %s, pid %s", host, pid)
}

// Silent returns what a relay's silence means, and where to look; empty if it runs. The
// text is the same however long the silence lasts.
func (r Relay) Silent(now time.Time) string {
	if r.Running(now) {
		return ""
	}
	return fmt.Sprintf("no heartbeat since %s; the process is stopped, hung or cut off; look at %s", r.Seen.UTC().Format(time.RFC3339), r.place())
}

// WhoSends returns who would send tasks, as far as relays can be seen: those that run,
// or what has become of the last one. It takes the list of Relays; nil is unknown.
func WhoSends(relays []Relay, now time.Time) string {
	running := slices.DeleteFunc(slices.Clone(relays), func(r Relay) bool { return !r.Running(now) })
	switch {
	case relays == nil:
		return "which relays run on this database is unknown"
	case len(relays) == 0:
		return "no relay runs on this database"
	case len(running) == 0:
		return relays[0].Silent(now)
	}
	if n := len(running); n > 1 {
		return fmt.Sprintf("%d relays run; their logs say why a task is not sent", n)
	}
	return "a relay runs; its log says why a task is not sent; look at " + running[0].place()
}

// Relays reads the relays of the database, the one seen last first.
func (s *Store) Relays(ctx context.Context) ([]Relay, error) {
	return reading(ctx, s, NoTx, Filter{}, "reading relays", func(c rows.Conn, _ rows.Filter) ([]Relay, error) {
		found, err := c.Relays(ctx)
		list := make([]Relay, len(found))
		for i, r := range found {
			list[i] = Relay(r)
		}
		return list, err
	})
}
