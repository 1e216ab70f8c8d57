package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		values      []float64
		med, lo, hi float64
	}{
		{[]float64{3}, 3, 3, 3},
		{[]float64{3, 1}, 2, 1, 3},
		{[]float64{9, 1, 2}, 2, 1, 9},
		{[]float64{4, 1, 2, 9}, 3, 1, 9},
	} {
		if med, lo, hi := spread(tc.values); med != tc.med || lo != tc.lo || hi != tc.hi {
			t.Errorf("spread(%v) = %v, %v, %v, want %v, %v, %v", tc.values, med, lo, hi, tc.med, tc.lo, tc.hi)
		}
	}
}

func TestPercentiles(t *testing.T) {
	var c Case
	values := make([]float64, 1000)
	for i := range values {
		values[i] = float64(1000 - i)
	}
	c.AddPercentiles("ms late", values, 0.5, 0.95, 0.99, 1)
	c.AddPercentiles("ms late", []float64{7}, 0.5, 0.95, 0.99, 1)
	got := map[string][]float64{}
	for _, m := range c.Metrics {
		got[m.Name] = m.Values
	}
	want := map[string][]float64{"p50": {500, 7}, "p95": {950, 7}, "p99": {990, 7}, "max": {1000, 7}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("percentiles: got %v, want %v", got, want)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.00349: "0.0035", 0.349: "0.35", -0.349: "-0.35", 3.49: "3.49", 34.94: "34.9", 349.4: "349", 3494: "3494",
		34_940: "34.9k", 30_000: "30k", 1_000_000: "1M", 1_500_000: "1.5M", 1_234_567: "1234.6k",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
	if got := ranged(1, 0.5, 2); got != "1.00 (0.50-2.00)" {
		t.Errorf(`ranged(1, 0.5, 2) = %q, want "1.00 (0.50-2.00)"`, got)
	}
	if got := ranged(5, 5, 5); got != "5.00" {
		t.Errorf(`ranged(5, 5, 5) = %q, want "5.00"`, got)
	}
}

// sample returns a result whose cases have different metrics.
func sample() *Result {
	s := &Scenario{Name: "publish", Servers: []string{"RabbitMQ 4.3.6", "Redis"}, Seconds: 12}
	base, ours := s.Find("quorum queues", "theirs", true), s.Find("quorum queues", "ours", false)
	for i := range 3 {
		ours.Add(metricRate, "messages/s", float64(900+i))
		ours.Add(metricP99, "ms late", 12)
		base.Add(metricRate, "messages/s", 1000)
	}
	s.Find("another group", "alone", false).Add("queues", "", 283)
	s.judge("quorum queues", []claim{
		atLeast("ours", metricRate, "theirs", 0.90),
		atMost("ours", metricP99, "", 10),
		atLeast("ours", metricP99, "theirs", 1), // the case theirs has no p99
		atLeast("left out", metricRate, "theirs", 1),
	})
	for range 2 {
		s.Notef("%v", errors.Join(errors.New("a note"), errors.New("in one line")))
	}
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return &Result{
		Started: started, Machine: Machine{OS: "linux/amd64", Cores: 2, Go: "go1.26"},
		Sizes: Sizes{Messages: 3, Rate: 1000, Repeats: 3, Pending: 5, Body: 256, Concurrency: 64}, Scenarios: []*Scenario{s},
	}
}

func TestWrite(t *testing.T) {
	const head = "2026-01-02T03:04:05Z, 2 cores, linux/amd64, go1.26, 3 messages of 256 bytes a repeat, 3 repeats, latency at 1000/s, 5 pending, 64 handlers." +
		" = marks baselines; ranges are over the repeats.\n\npublish (RabbitMQ 4.3.6, Redis; 12 s)\n\n"
	for format, want := range map[Format]string{
		Text: head + `  quorum queues  rate, messages/s  p99, ms late
  = theirs       1000
  ours           901 (900-902)     12.0

  another group  queues
  alone          283

- a note; in one line

  targets: 1 of 2 met                 measured            wanted
  ours: rate / theirs; quorum queues  0.90 (0.90-0.90) x  at least 0.90  met
  ours: p99; quorum queues            12.0 ms late        at most 10.0   MISSED
`,
		Markdown: head + `| quorum queues | rate, messages/s | p99, ms late |
|---|---|---|
| = theirs | 1000 |  |
| ours | 901 (900-902) | 12.0 |

| another group | queues |
|---|---|
| alone | 283 |

- a note; in one line

| targets: 1 of 2 met | measured | wanted |  |
|---|---|---|---|
| ours: rate / theirs; quorum queues | 0.90 (0.90-0.90) x | at least 0.90 | met |
| ours: p99; quorum queues | 12.0 ms late | at most 10.0 | MISSED |
`,
	} {
		var b strings.Builder
		if err := sample().Write(&b, format); err != nil {
			t.Fatalf("%v: %v", format, err)
		}
		if b.String() != want {
			t.Errorf("%s: got\n%s\nwant\n%s", format, b.String(), want)
		}
	}
}

func TestReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	want := sample()
	if err := want.WriteReport(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got Result
	if err := json.Unmarshal(data, &got); err != nil || !reflect.DeepEqual(&got, want) {
		t.Errorf("reading the written result: got %+v (error %v), want %+v", got, err, want)
	}
	tables, err := os.ReadFile(filepath.Join(dir, "result.md"))
	if err != nil || !strings.Contains(string(tables), "| ours | 901 (900-902) | 12.0 |") {
		t.Errorf(`result.md: got %s (error %v), want "| ours | 901 (900-902) | 12.0 |" in it`, tables, err)
	}
}

// A busy machine slows down the same repeat of both cases, so ratios are computed for each pair of repeats.
func TestRatiosAreOfPairs(t *testing.T) {
	s := &Scenario{}
	ours, base := s.Find("g", "ours", false), s.Find("g", "base", true)
	for i, rate := range []float64{100, 10, 50} {
		base.Add(metricRate, "messages/s", rate)
		ours.Add(metricRate, "messages/s", rate*[]float64{0.9, 1, 0.8}[i])
	}
	s.judge("g", []claim{atLeast("ours", metricRate, "base", 0.89), atMost("ours", metricRate, "base", 0.85), atMost("base", metricRate, "", 50)})
	var met []bool
	for _, g := range s.Targets {
		met = append(met, g.Met)
	}
	if want := []bool{true, false, true}; !slices.Equal(met, want) {
		t.Fatalf("targets that are met: got %v, want %v", met, want)
	}
	if got := s.Targets[0]; math.Abs(got.Value-0.9) > 1e-9 || got.Low != 0.8 || got.High != 1 || got.Unit != "x" {
		t.Errorf(`got %+v, want Value within %v of 0.9, Low = 0.8, High = 1 and Unit = "x"`, got, 1e-9)
	}
}

// Each case has a unique name within its group, and claims name existing cases.
func TestScenarios(t *testing.T) {
	for _, quick := range []bool{true, false} {
		o := Options{Quick: quick}.WithDefaults()
		for _, s := range scenarios {
			titles := map[string]bool{}
			for _, g := range s.groups(o) {
				if titles[g.title] || g.title == "" || g.repeats < 1 || len(g.cases) == 0 {
					t.Errorf("%s: group %q has %d repeats and %d cases, want at least 1 of both and a unique title",
						s.name, g.title, g.repeats, len(g.cases))
				}
				titles[g.title] = true
				names := map[string]bool{"": true}
				for _, k := range g.cases {
					if names[k.name] || k.work == nil {
						t.Errorf("%s, %s: case %q is repeated or has no work, want unique names and a function", s.name, g.title, k.name)
					}
					names[k.name] = true
				}
				for _, c := range g.claims {
					if c.ours == "" || !names[c.ours] || !names[c.over] || c.bound == 0 {
						t.Errorf("%s, %s: claim %+v is incomplete or names an unknown case, want existing cases and a bound", s.name, g.title, c)
					}
				}
			}
			if !strings.Contains(Help(), "\n  "+s.name+" ") && !strings.HasPrefix(Help(), "  "+s.name+" ") {
				t.Errorf("the help does not list the scenario %s, want it listed", s.name)
			}
		}
	}
}

func TestInterleave(t *testing.T) {
	var got string
	say := func(s string) func() error {
		return func() error {
			got += s
			if len(got) == 8 {
				return errors.New("enough")
			}
			return nil
		}
	}
	steps := 0
	err := Interleave(3, []func() error{say("A"), say("B"), say("C")}, func(n int) { steps += n })
	if err == nil || got != "ABCBCACA" || steps != 7 {
		t.Errorf(`Interleave ran %s in %d steps (error %v), want "ABCBCACA" in 7 steps and an error`, got, steps, err)
	}
}

func TestOptions(t *testing.T) {
	for _, quick := range []bool{true, false} {
		if err := (Options{Quick: quick}).WithDefaults().Validate(); err != nil {
			t.Errorf("the default options with Quick = %t: got error %v, want nil", quick, err)
		}
	}
	bad := Options{Scenarios: []string{"nonsense"}, QueueTypes: []topology.QueueType{"stream"}, Sizes: Sizes{Messages: 1, Body: 1}}.WithDefaults()
	err := bad.Validate()
	if !errors.Is(err, ErrOptions) {
		t.Fatalf("Validate: got error %v, want ErrOptions", err)
	}
	for _, part := range []string{`"nonsense"`, `"stream"`, "messages: 1;", "body: 1;"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("Validate: got error %v, want it to contain %q", err, part)
		}
	}
}

func TestSpan(t *testing.T) {
	s := span{5 * time.Second, 35 * time.Second}
	const n = 20_000
	var sum time.Duration
	for i := range n {
		d := s.at(i)
		if d < s.lo || d > s.hi || d%time.Millisecond != 0 || d != s.at(i) {
			t.Fatalf("delay %d is %v, want the same whole number of milliseconds from %v to %v each time", i, d, s.lo, s.hi)
		}
		sum += d
	}
	if mean := (sum / n).Seconds(); math.Abs(mean-20) > 0.3 {
		t.Errorf("the mean delay is %.2f s, want 20", mean)
	}
	if got := halfAnHour(7); got != 30*time.Minute {
		t.Errorf("halfAnHour(7) = %v, want 30m", got)
	}
}

// slow returns a timer that needs ten seconds to accept each message, and then returns err.
func slow(err error) timer {
	return timer{
		run: func(ctx context.Context, _ func([]byte)) error {
			<-ctx.Done()
			return nil
		},
		keep: func(context.Context, []kept) error {
			<-time.After(10 * time.Second)
			return err
		},
	}
}

// If a publisher falls behind, the current pass ends and its rate counts as not sustained, but the run continues. The
// same applies before any message in the measured period is due, and when sends reach their deadlines.
func TestFlowThatFallsBehind(t *testing.T) {
	gone := errors.New("no broker")
	f := flow{rate: 12_000, delays: span{2 * time.Second, 6 * time.Second}, warm: 6 * time.Second, measure: 15 * time.Second}
	s := &Scenario{}
	one := &turn{run: &run{o: Options{}.WithDefaults()}, s: s, row: &Case{}}
	synctest.Test(t, func(t *testing.T) {
		err := steady(f, func(context.Context, *turn) (timer, error) { return slow(nil), nil })(t.Context(), one)
		if err != nil || len(one.row.Metrics) > 0 || len(s.Notes) != 1 {
			t.Errorf("got error %v, the metrics %v and the notes %q, want no error, no metrics and one note", err, one.row.Metrics, s.Notes)
		}
	})
	for warm, late := range map[time.Duration]int{time.Minute: 0, time.Second: 1} {
		for _, failure := range []error{nil, fmt.Errorf("outcome unknown: %w", context.DeadlineExceeded), gone} {
			synctest.Test(t, func(t *testing.T) {
				f.warm = warm
				o, err := f.through(t.Context(), slow(failure), minBody, time.Minute)
				if errors.Is(failure, gone) {
					if !errors.Is(err, gone) {
						t.Errorf("failure %v: got error %v, want %v", failure, err, gone)
					}
					return
				}
				if err != nil || o.kept || min(len(o.late), 1) != late || o.missing != len(o.late) {
					t.Errorf("warm-up of %v, failure %v: got %d values, %d missing messages, kept = %t and error %v, want all messages missing, kept = false and no error",
						warm, failure, len(o.late), o.missing, o.kept, err)
				}
			})
		}
	}
}

// The rounding of a timer counts as lateness, because messages are due at arbitrary times.
func TestRoundingIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		came := make(chan func([]byte), 1)
		var deliver func([]byte)
		rounding := slow(nil)
		rounding.run = func(ctx context.Context, f func([]byte)) error {
			came <- f
			<-ctx.Done()
			return nil
		}
		rounding.keep = func(_ context.Context, list []kept) error {
			const tenth = 100 * time.Millisecond
			for _, k := range list {
				time.AfterFunc((time.Until(k.due) + tenth - 1).Truncate(tenth), func() { deliver(k.content) })
			}
			return nil
		}
		go func() { deliver = <-came }()
		f := flow{rate: 1000, delays: span{time.Second, 3 * time.Second}, warm: 3 * time.Second, measure: 10 * time.Second}
		o, err := f.through(t.Context(), rounding, minBody, time.Minute)
		if err != nil || o.missing > 0 || !o.kept {
			t.Fatalf("got %+v (error %v), want missing = 0 and kept = true", o, err)
		}
		for share, want := range map[float64]float64{0.5: 49.5, 0.99: 98} {
			if got := lateness.Percentile(o.late, share); math.Abs(got-want) > 2 {
				t.Errorf("percentile %v of the lateness is %v ms, want about %v ms", share, got, want)
			}
		}
	})
}

func TestLatenessCountsTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
		l := &arrivals{from: at(100).UnixMicro(), to: at(200).UnixMicro()}
		for i, due := range []int{99, 100, 199, 200} {
			content := l.asked(minBody, i, at(due))
			if got := binary.BigEndian.Uint64(content); got != uint64(i) {
				t.Errorf("the message's body contains the number %d, want %d", got, i)
			}
			time.AfterFunc(time.Until(at(due+10*i)), func() { l.came(content) })
		}
		late, missing, err := l.wait(t.Context(), time.Minute)
		if want := []float64{10, 20}; err != nil || missing != 0 || !slices.Equal(late, want) {
			t.Errorf("got the lateness %v and %d missing messages (error %v), want %v and 0", late, missing, err, want)
		}
		<-time.After(time.Second) // waits until the last message has arrived
	})
}

func TestMissingMessagesAreLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		l := &arrivals{from: now.UnixMicro(), to: now.Add(time.Second).UnixMicro()}
		l.asked(minBody, 0, now)
		late, missing, err := l.wait(t.Context(), 3*time.Millisecond)
		if err != nil || missing != 1 || !slices.Equal(late, []float64{3}) {
			t.Errorf("got the lateness %v and %d missing messages (error %v), want [3] and 1", late, missing, err)
		}
	})
}

func TestSearch(t *testing.T) {
	for _, limit := range []float64{400, 3000, 40_000, 1e9} {
		e, tries := &search{}, 0
		for rate := e.next(); rate > 0; rate = e.next() {
			e.record(rate, rate <= limit)
			tries++
		}
		want := min(limit, fastest)
		if limit < slowest {
			want = 0
		}
		if e.held > want || e.held < want*0.9 || tries > climbs {
			t.Errorf("limit %v: found %v in %d tries, want %v to %v in at most %d tries", limit, e.held, tries, want*0.9, want, climbs)
		}
	}
}
