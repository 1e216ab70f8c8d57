package snapshot

import (
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
)

// sampled returns readings of a broker's clock that is ahead by theta. There is one reading per step during one second,
// and the network delays each by latency in each direction.
func sampled(theta, step, latency time.Duration) []reading {
	var out []reading
	start := time.Unix(1_700_000_000, 123_456_789)
	for at := start; at.Before(start.Add(1050 * time.Millisecond)); at = at.Add(step) {
		out = append(out, newReading(at, at.Add(2*latency), at.Add(latency).Add(theta).Truncate(time.Second), deathResolution))
	}
	return out
}

// If times in whole seconds are read often enough, the clock difference can be computed with a precision of
// milliseconds, and the true difference is always within the bounds.
func TestClockFromWholeSeconds(t *testing.T) {
	for _, theta := range []time.Duration{0, time.Millisecond, -time.Millisecond, 400 * time.Millisecond, 5 * time.Second, -3*time.Hour + 7*time.Millisecond} {
		for _, latency := range []time.Duration{0, 300 * time.Microsecond, 20 * time.Millisecond} {
			low, high, ok := narrow(sampled(theta, 4*time.Millisecond, latency))
			if !ok || low > theta || high < theta {
				t.Errorf("clock ahead by %v: got %v to %v, ok = %t, want bounds around the true difference and ok = true", theta, low, high, ok)
			}
			if bound := 4*time.Millisecond + 2*latency; high-low > bound {
				t.Errorf("latency %v: got bounds %v apart, want at most %v", latency, high-low, bound)
			}
		}
	}
}

func TestClockReadingsThatContradict(t *testing.T) {
	steady, later := sampled(0, 50*time.Millisecond, 0), sampled(time.Hour, 50*time.Millisecond, 0)
	if low, high, ok := narrow(append(steady, later...)); ok {
		t.Errorf("narrow of readings from before and after a clock was set: got %v to %v, want ok to be false", low, high)
	}
	if low, high, ok := narrow(nil); ok {
		t.Errorf("narrow without readings: got %v to %v, want ok to be false", low, high)
	}
	if c := estimate(nil); c != nil {
		t.Errorf("estimate without readings: got %+v, want nil", c)
	}
}

// If several methods have measured a clock, the most precise measurement is used.
func TestClockTakesTheBestWay(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	ways := map[string][]reading{
		methodDate:      {newReading(at, at.Add(time.Millisecond), at, dateResolution)},
		methodConnected: {newReading(at, at.Add(30*time.Millisecond), at.Add(9*time.Millisecond), connectedResolution)},
	}
	if c := estimate(ways); c == nil || c.Method != methodConnected || c.Low != -21*time.Millisecond || c.High != 10*time.Millisecond {
		t.Errorf("got %+v, want a clock with Method = %v, Low = %v and High = 10ms", c, methodConnected, -21*time.Millisecond)
	}
	date := estimate(map[string][]reading{methodDate: ways[methodDate]})
	if date == nil || date.Method != methodDate {
		t.Fatalf("got %+v, want an estimate with Method = methodDate", date)
	}
	if width := date.High - date.Low; width != 2*time.Second+time.Millisecond {
		t.Errorf("the bounds of the estimate by the date are %s apart, want 2.001s", width)
	}
	ways[methodDeath] = sampled(0, 4*time.Millisecond, time.Millisecond)
	if c := estimate(ways); c.Method != methodDeath || c.Resolution() > 3*time.Millisecond {
		t.Errorf("got %+v, want Method = %v and Resolution() <= 3ms", c, methodDeath)
	}
}

// During an alarm, clocks are not measured over AMQP. Nodes whose clocks the management API did not show are named.
func TestClocksThatAnAlarmHides(t *testing.T) {
	c := &collector{clocks: map[string]map[string][]reading{}, snap: doctor.Snapshot{
		Blocked: "low on memory", NodesComplete: true,
		Nodes: []doctor.Node{{Name: "n1", Running: true}, {Name: "n2", Running: true}, {Name: "n3"}},
	}}
	c.heard("n1", methodDate, reading{-time.Second, time.Second})
	if err := c.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := "the clock of n2 was not measured, because that sends messages, and the broker blocks connections that publish (low on memory)"
	if u := c.snap.Unchecked; len(u) != 1 || u[0].Area != doctor.AreaClock || u[0].Why != want {
		t.Errorf("unchecked: %v, want %q", u, want)
	}
}
