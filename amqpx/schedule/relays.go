package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/rows"
)

// RelaySilence is the age of the last heartbeat beyond which a relay does not count as running. A
// running relay sends one every 10 seconds.
const RelaySilence = 20 * time.Second

// Relay is a process that runs Store.Run on the database, or that died within the last week. A
// relay that has stopped normally is not listed.
type Relay struct {
	Name    string    `json:"name"`    // host:process
	Version string    `json:"version"` // of rabbitdelay; empty if the build does not have it
	Started time.Time `json:"started"`
	Seen    time.Time `json:"seen"` // by the database's clock
}

// Running reports whether the relay was seen within RelaySilence.
func (r Relay) Running(now time.Time) bool { return now.Sub(r.Seen) <= RelaySilence }

// place returns the host and the process id of the relay as text.
func (r Relay) place() string {
	host, pid, _ := strings.Cut(r.Name, ":")
	return fmt.Sprintf("host %s, pid %s", host, pid)
}

// Silent explains why a relay without a recent heartbeat does not count as running, and where to
// look. It returns an empty string if the relay runs. The text does not change while the silence
// lasts.
func (r Relay) Silent(now time.Time) string {
	if r.Running(now) {
		return ""
	}
	return fmt.Sprintf("no heartbeat since %s; the process is stopped, hung or cut off; look at %s", r.Seen.UTC().Format(time.RFC3339), r.place())
}

// WhoSends describes which relays send tasks at now, or why the relay that was seen last does not.
// It takes the result of Store.Relays. A nil list means that the relays are unknown.
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

// Relays returns the relays of the database, the most recently seen one first.
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
