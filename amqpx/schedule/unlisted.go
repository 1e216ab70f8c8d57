package schedule

import (
	"context"
	"fmt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/relay"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// DestinationCount is the number of pending tasks of a destination, among the first MostUnlisted
// pending tasks of its queue or exchange by due time.
type DestinationCount struct {
	Destination topology.Destination
	Pending     int64
}

// MostUnlisted is the largest number of tasks of a queue or an exchange that Unlisted reads.
const MostUnlisted = 10_000

// Unlisted returns the destinations of pending tasks that Config.Destination or the sender rejects.
// Schedule rejects such tasks, so they were written by other programs, or before the configuration
// changed. A relay with this configuration will not send them. Without either check the result is
// empty.
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
		// An exchange is checked with each of its routing keys.
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

// listed returns the error with which the configuration or the sender rejects a destination, whatever
// the message.
func (s *Store) listed(dest topology.Destination) error {
	return relay.Listed(s.sender, s.cfg.Destination, dest)
}
