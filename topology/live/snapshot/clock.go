package snapshot

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
)

// reading is one look at the broker's clock: it showed a time between Earliest
// and Latest at some instant between Sent and Received of this process's clock.
type reading struct {
	sent, received   time.Time
	earliest, latest time.Time
}

// Readings of the ways to look.
func dateReading(sent, received, date time.Time) reading {
	// Whole seconds, and the HTTP server renews its text of the time only once a
	// second.
	return reading{sent, received, date, date.Add(2 * time.Second)}
}

func deathReading(sent, received, death time.Time) reading {
	return reading{sent, received, death, death.Add(time.Second)} // whole seconds
}

func connectedReading(sent, received time.Time, epochMilli int64) reading {
	at := time.UnixMilli(epochMilli)
	return reading{sent, received, at, at.Add(time.Millisecond)}
}

// bounds are what one reading says about the difference between the clocks.
func (r reading) bounds() (low, high time.Duration) {
	return r.earliest.Sub(r.received), r.latest.Sub(r.sent)
}

// narrow combines readings: the difference satisfies all of them. Whole seconds
// become milliseconds in this way, because among many readings some lie just
// before and some just after the second's end. It fails where the readings
// contradict each other, because a clock was set meanwhile.
func narrow(readings []reading) (low, high time.Duration, ok bool) {
	for i, r := range readings {
		l, h := r.bounds()
		if i == 0 || l > low {
			low = l
		}
		if i == 0 || h < high {
			high = h
		}
	}
	return low, high, len(readings) > 0 && low <= high
}

// heard adds readings of the clock of a node, which one way gave.
func (c *collector) heard(node, method string, readings ...reading) {
	if c.clocks[node] == nil {
		c.clocks[node] = map[string][]reading{}
	}
	c.clocks[node][method] = append(c.clocks[node][method], readings...)
}

// estimates returns the clocks of the nodes, by name.
func (c *collector) estimates() []doctor.Clock {
	var all []doctor.Clock
	for _, node := range slices.Sorted(maps.Keys(c.clocks)) {
		if clock := estimate(c.clocks[node]); clock != nil {
			clock.Node = node
			all = append(all, *clock)
		}
	}
	return all
}

// estimate returns what the best of several ways to measure gave, by name.
func estimate(ways map[string][]reading) *doctor.Clock {
	var best *doctor.Clock
	for _, method := range []string{methodDeath, methodConnected, methodDate} {
		low, high, ok := narrow(ways[method])
		if ok && (best == nil || high-low < best.High-best.Low) {
			best = &doctor.Clock{Low: low, High: high, Method: method}
		}
	}
	return best
}

const (
	methodDeath     = "x-death of expired messages"
	methodConnected = "connected_at of the management API"
	methodDate      = "Date of the management API"
)

// dates asks the management API of each node for its name, and hears the time in its
// answer. A node that does not answer is asked by AMQP.
func (c *collector) dates(ctx context.Context) {
	if !c.managed {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sampleWait)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, m := range c.src.Management.Each() {
		wg.Go(func() {
			var overview struct {
				Node string `json:"node"`
			}
			x, err := m.Call(ctx, http.MethodGet, "/api/overview?columns=node", nil, &overview)
			if err != nil || x.Date.IsZero() {
				return
			}
			// The times of the exchange are this machine's; a test may have set Now off.
			off := time.Until(c.src.Now())
			mu.Lock()
			defer mu.Unlock()
			c.heard(overview.Node, methodDate, dateReading(x.Sent.Add(off), x.Received.Add(off), x.Date))
		})
	}
	wg.Wait()
}
