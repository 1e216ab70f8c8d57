package auth

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limiter allows each key a rate, and forgets keys that have not been used for long.
type limiter struct {
	every time.Duration
	burst int

	mu   sync.Mutex
	keys map[string]*rate.Limiter
}

// maxKeys bounds the memory of a limiter.
const maxKeys = 10_000

// allow reports whether one more is allowed, and takes it.
func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.keys[key]
	if !ok {
		if l.keys == nil {
			l.keys = map[string]*rate.Limiter{}
		}
		if len(l.keys) >= maxKeys {
			l.forget(now)
		}
		if len(l.keys) >= maxKeys { // all of them are in use: an attack from many places
			return false
		}
		k = rate.NewLimiter(rate.Every(l.every), l.burst)
		l.keys[key] = k
	}
	return k.AllowN(now, 1)
}

// forget drops keys that have all they are allowed.
func (l *limiter) forget(now time.Time) {
	for key, k := range l.keys {
		if k.TokensAt(now) >= float64(l.burst) {
			delete(l.keys, key)
		}
	}
}

// back forgets a key whose attempts were not an attack.
func (l *limiter) back(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.keys, key)
}
