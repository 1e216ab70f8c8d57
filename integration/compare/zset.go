package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// set keeps tasks in a sorted set of Redis whose scores are the due times. This is what many articles recommend: a
// poller reads the members that are due, and handles those that it removes itself.
type set struct {
	client *redis.Client
	flush  func(ctx context.Context) error
}

const setKey = "tasks"

// A poller takes up to 100 tasks at a time, and pauses for a second when no more tasks are due.
const (
	pollTake     = 100
	pollInterval = time.Second
)

func openSet(ctx context.Context, e *env) (system, error) {
	o, err := e.redisOptions()
	if err != nil {
		return nil, err
	}
	s := &set{client: redis.NewClient(o), flush: flushing(o)}
	if err := s.client.Ping(ctx).Err(); err != nil {
		return nil, errors.Join(err, s.close(ctx))
	}
	return s, nil
}

func member(t task) redis.Z {
	return redis.Z{Score: float64(t.due.UnixMilli()), Member: t.payload()}
}

func (s *set) schedule(ctx context.Context, t task) error {
	return s.client.ZAdd(ctx, setKey, member(t)).Err()
}

func (s *set) scheduleAll(ctx context.Context, list []task) error {
	all := make([]redis.Z, len(list))
	for i, t := range list {
		all[i] = member(t)
	}
	return s.client.ZAdd(ctx, setKey, all...).Err()
}

func (s *set) run(ctx context.Context, h handler) error {
	return poll(ctx, func() (int, error) {
		now := strconv.FormatInt(time.Now().UnixMilli(), 10)
		list, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: setKey, Start: "-inf", Stop: now, ByScore: true, Count: pollTake}).Result()
		if err != nil {
			return 0, err
		}
		for _, payload := range list {
			removed, err := s.client.ZRem(ctx, setKey, payload).Result()
			if err != nil {
				return 0, err
			}
			if removed == 0 {
				continue // another poller was faster
			}
			if err := h(ctx, []byte(payload), nil); err != nil {
				return 0, err
			}
		}
		return len(list), nil
	})
}

func (s *set) close(ctx context.Context) error {
	return errors.Join(s.flush(ctx), s.client.Close())
}

// poll calls take until it returns fewer tasks than it may take, and then pauses. It calls take again after an error.
func poll(ctx context.Context, take func() (int, error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for n := pollTake; n == pollTake && ctx.Err() == nil; {
			var err error
			if n, err = take(); err != nil {
				break // the server may be restarting
			}
		}
	}
}
