package bench

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// minBody leaves room for a number in every body.
const minBody = 8

// body is a payload that begins with a number.
func body(size int, number uint64) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint64(b, number)
	return b
}

// cost is what a piece of work took.
type cost struct {
	seconds     float64
	allocations float64
	bytes       float64
}

// measured runs f. What is allocated counts for the whole process: the client
// library's reader works for f too.
func measured(f func() error) (cost, error) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := f()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return cost{
		seconds:     took.Seconds(),
		allocations: float64(after.Mallocs - before.Mallocs),
		bytes:       float64(after.TotalAlloc - before.TotalAlloc),
	}, err
}

// record enters what n messages cost.
func (c *Case) record(k cost, n int) {
	c.add(metricRate, "messages/s", float64(n)/k.seconds)
	c.add(metricAllocations, "per message", k.allocations/float64(n))
	c.add(metricBytes, "bytes per message", k.bytes/float64(n))
}

// Names of metrics that targets refer to.
const (
	metricRate        = "rate"
	metricAllocations = "allocations"
	metricBytes       = "allocated"
	metricP50         = "p50"
	metricP99         = "p99"
)

// variant is one of the cases that take turns.
type variant struct {
	run func(ctx context.Context) error
}

// interleave runs A B C, B C A, C A B, so that no case always follows the same
// one, which may leave the broker some work.
func interleave(ctx context.Context, repeats int, variants []variant) error {
	for first := range repeats {
		for i := range variants {
			if err := variants[(first+i)%len(variants)].run(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// tick is how often pace wakes up.
const tick = 5 * time.Millisecond

// pace calls send with how many messages are due to be sent by rate, until the
// time is over or send has fallen behind by more than a second. Each call is a
// goroutine of its own, so that a slow confirm does not hold up the next. It
// returns the first error, and whether the rate was kept.
func pace(ctx context.Context, rate float64, during time.Duration, send func(n int) func() error) (kept bool, err error) {
	const inFlight = 256
	slots := make(chan struct{}, inFlight)
	var running sync.WaitGroup
	var failure atomic.Pointer[error]
	defer func() {
		running.Wait()
		if e := failure.Load(); e != nil && err == nil {
			err = *e
		}
	}()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	start := time.Now()
	sent := 0.0
	for failure.Load() == nil {
		elapsed := min(time.Since(start), during)
		behind := rate*elapsed.Seconds() - sent
		if behind > rate {
			return false, nil
		}
		if n := int(behind); n > 0 {
			sent += float64(n)
			work := send(n)
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return false, ctx.Err()
			}
			running.Go(func() {
				if err := work(); err != nil {
					failure.CompareAndSwap(nil, &err)
				}
				<-slots
			})
		}
		if elapsed == during {
			return true, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return false, nil
}
