package taskview

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// relaySilence is the age of the last heartbeat beyond which a relay is not regarded as running. A running relay sends
// one every 10 seconds.
const relaySilence = 20 * time.Second

// Relay is a process that runs schedule.Store.Run on the database, or that died within the last week. A relay that has
// stopped normally is not listed.
type Relay struct {
	Name    string    `json:"name"`    // host:process
	Version string    `json:"version"` // version of rabbitdelay; empty if the build does not contain it
	Started time.Time `json:"started"`
	Seen    time.Time `json:"seen"` // by the database's clock
}

// Running reports whether the relay was seen within the last 20 seconds.
func (r Relay) Running(now time.Time) bool { return now.Sub(r.Seen) <= relaySilence }

// String returns where the relay runs: its host and its process id.
func (r Relay) String() string {
	host, pid, _ := strings.Cut(r.Name, ":")
	return fmt.Sprintf("host %s, pid %s", host, pid)
}

// Silent explains why a relay without a recent heartbeat is not regarded as running, and where to look. It returns an
// empty string if the relay runs. The text does not contain the duration, so that it stays the same while the relay is
// silent.
func (r Relay) Silent(now time.Time) string {
	if r.Running(now) {
		return ""
	}
	return fmt.Sprintf("no heartbeat since %s; the process has stopped, hangs or is disconnected; check %s", r.Seen.UTC().Format(time.RFC3339), r)
}

// Relays returns the relays of the database, the most recently seen one first. If none of them is running and the
// database is read-only, as a replica is, relays may run although they could not record it. The error then wraps
// schedule.ErrReadOnly.
func (s *Store) Relays(ctx context.Context) ([]Relay, error) {
	return reading(ctx, s, "reading relays", func(c rows.Conn) ([]Relay, error) {
		found, err := c.Relays(ctx)
		if err != nil {
			return nil, err
		}
		list := make([]Relay, len(found))
		for i, r := range found {
			list[i] = Relay(r)
		}
		now, err := c.Clock(ctx)
		if err != nil || slices.ContainsFunc(list, func(r Relay) bool { return r.Running(now) }) {
			return list, err
		}
		if err := c.CanBeat(ctx); errors.Is(err, schedule.ErrReadOnly) {
			return nil, fmt.Errorf("cannot tell whether a relay is running, because relays cannot write their heartbeats: %w", err)
		}
		return list, nil
	})
}
