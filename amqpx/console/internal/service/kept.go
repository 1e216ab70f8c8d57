package service

import (
	"sync"
	"time"
)

const (
	// keepTimes is how many times longer than it took a result is kept.
	keepTimes = 20
	// maxKept is the most results that are kept.
	maxKept = 64
)

// kept keeps results by what was asked, because each costs the database or the broker
// something.
type kept[T any] struct {
	mu   sync.Mutex
	last map[string]keptResult[T]
}

type keptResult[T any] struct {
	v     T
	until time.Time
}

// get returns what is kept, or else what take returns. It takes one at a time, so that many
// callers cost no more than one.
func (k *kept[T]) get(key string, take func(now time.Time) (T, error)) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if r, ok := k.last[key]; ok && now.Before(r.until) {
		return r.v, nil
	}
	v, err := take(now)
	if err != nil {
		return v, err
	}
	if k.last == nil || len(k.last) >= maxKept {
		k.last = map[string]keptResult[T]{}
	}
	done := time.Now()
	k.last[key] = keptResult[T]{v, done.Add(max(keepTimes*done.Sub(now), time.Second))}
	return v, nil
}
