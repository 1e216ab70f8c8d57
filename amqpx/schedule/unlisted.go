package schedule

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DestinationCount is how many pending tasks a destination has, at most
// MostUnlisted of those of its queue or exchange that are due first.
type DestinationCount struct {
	Destination topology.Destination
	Pending     int64
}

// MostUnlisted is how many tasks of a queue or an exchange Unlisted reads.
const MostUnlisted = 10_000

// Unlisted returns the destinations of pending tasks that may not be used: that
// Config.Destination or the sender refuses. Schedule refuses such tasks, so they were
// written by other programs, or before the configuration changed; a relay with this
// configuration will refuse to send them. Without either check there are none.
func (s *Store) Unlisted(ctx context.Context) ([]DestinationCount, error) {
	if !relay.Lists(s.sender) && s.cfg.Destination == nil {
		return nil, nil
	}
	c, err := s.conn(ctx, NoTx)
	if err != nil {
		return nil, err
	}
	lanes, err := c.PendingLanes(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for tasks: %w", err)
	}
	var list []DestinationCount
	for _, l := range lanes {
		// An exchange is asked about with each of its routing keys.
		if l.Exchange == "" && s.listed(topology.Destination{Queue: l.Queue}) == nil {
			continue
		}
		dest := topology.Destination{Queue: l.Queue, Exchange: l.Exchange}
		err := c.CountKeys(ctx, l, MostUnlisted, func(key string, pending int64) {
			dest.RoutingKey = key
			if s.listed(dest) != nil {
				list = append(list, DestinationCount{dest, pending})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("counting tasks of %s: %w", topology.Destination{Queue: l.Queue, Exchange: l.Exchange}, err)
		}
	}
	return list, nil
}

// listed returns the error with which the configuration or the sender refuses a
// destination, whatever the message.
func (s *Store) listed(dest topology.Destination) error {
	return relay.Listed(s.sender, s.cfg.Destination, dest)
}
