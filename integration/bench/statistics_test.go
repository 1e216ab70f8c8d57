package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/lateness"
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
			t.Errorf("%v: got %v, %v, %v", tc.values, med, lo, hi)
		}
	}
}

// slow takes ten seconds for whatever it is to keep, and then may fail.
type slow struct{ err error }

func (slow) start(context.Context, func([]byte, time.Time)) (func() error, error) {
	return func() error { return nil }, nil
}

func (s slow) keep(context.Context, []kept) error {
	<-time.After(10 * time.Second)
	return s.err
}

// A publisher that falls behind ends a pass and not the run, also before anything is
// due that counts, or when its sends reach their deadlines: the rate was not kept.
func TestFlowThatFallsBehind(t *testing.T) {
	gone := errors.New("no broker")
	scenario := &Scenario{}
	p := &passes{r: &run{o: Options{}.WithDefaults()}, s: scenario, f: flow{rate: 12_000, delays: span{2 * time.Second, 6 * time.Second}, warm: time.Second, measure: 15 * time.Second}}
	c := p.add("slow", false, slow{}, func(context.Context) error { return nil })
	synctest.Test(t, func(t *testing.T) {
		if err := p.run(t.Context(), 1); err != nil || len(c.Metrics) > 0 || len(scenario.Notes) != 1 {
			t.Errorf("%v, recorded %v, noted %q", err, c.Metrics, scenario.Notes)
		}
	})
	for warm, late := range map[time.Duration]int{time.Minute: 0, time.Second: 1} {
		for _, failure := range []error{nil, fmt.Errorf("outcome unknown: %w", context.DeadlineExceeded), gone} {
			synctest.Test(t, func(t *testing.T) {
				f := flow{rate: 12_000, delays: span{2 * time.Second, 6 * time.Second}, warm: warm, measure: 15 * time.Second}
				o, err := f.through(t.Context(), slow{failure}, minBody, time.Minute, func(int) {})
				if errors.Is(failure, gone) {
					if !errors.Is(err, gone) {
						t.Errorf("with %v: %v", failure, err)
					}
					return
				}
				if err != nil || o.kept || min(len(o.values), 1) != late || o.missing != len(o.values) {
					t.Errorf("warm for %v, with %v: %d values, %d missing, kept: %t, %v", warm, failure, len(o.values), o.missing, o.kept, err)
				}
			})
		}
	}
}

func TestDistribution(t *testing.T) {
	values := make([]float64, 1000)
	for i := range values {
		values[i] = float64(i + 1)
	}
	points := distribution(values)
	if last := points[len(points)-1]; last != (Point{1000, 1}) {
		t.Errorf("the distribution ends at %v", last)
	}
	for i := 1; i < len(points); i++ {
		if points[i].X < points[i-1].X || points[i].Y < points[i-1].Y {
			t.Fatalf("the distribution falls: %v after %v", points[i], points[i-1])
		}
	}
}

// A busy machine slows a repeat of both, so ratios are taken pair by pair.
func TestRatiosAreOfPairs(t *testing.T) {
	s := &Scenario{}
	ours, base := s.find("g", "ours", false), s.find("g", "base", true)
	for i, base1 := range []float64{100, 10, 50} {
		base.add(metricRate, "messages/s", base1)
		ours.add(metricRate, "messages/s", base1*[]float64{0.9, 1, 0.8}[i])
	}
	s.ratio("r", ours, base, metricRate, 0.9, false)
	s.ratio("r", ours, base, metricRate, 0.85, true)
	s.ratio("nobody measured this", ours, base, metricP99, 0.9, false)
	if len(s.Targets) != 2 {
		t.Fatalf("%d targets", len(s.Targets))
	}
	got := s.Targets[0]
	if math.Abs(got.Value-0.9) > 1e-9 || got.Low != 0.8 || got.High != 1 || !got.Met {
		t.Errorf("got %+v", got)
	}
	if s.Targets[1].Met {
		t.Errorf("0.9 counts as at most 0.85")
	}
}

func TestOptions(t *testing.T) {
	if err := (Options{}).WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
	bad := Options{Scenarios: []string{"nonsense"}, QueueTypes: []topology.QueueType{"stream"}, Messages: 1, Body: 1}.WithDefaults()
	err := bad.Validate()
	if !errors.Is(err, ErrOptions) {
		t.Fatal(err)
	}
	for _, part := range []string{`"nonsense"`, `"stream"`, "messages: 1;", "body: 1;"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: no %s", err, part)
		}
	}
}

// What waits in the long run has at most the longest delay left, and on average
// half of the mean square over the mean.
func TestFlowBeginsInTheMiddle(t *testing.T) {
	f := flow{rate: 100, delays: span{5 * time.Second, 35 * time.Second}, prefill: true}
	const n = 20_000
	var sum time.Duration
	for i := range n {
		d := f.delays.remaining(i)
		if d < time.Millisecond || d > f.delays.hi || d%time.Millisecond != 0 {
			t.Fatalf("%v left", d)
		}
		sum += d
	}
	mean, want := (sum / n).Seconds(), 475.0/40 // E[D²]/2E[D] of 5 to 35 s
	if math.Abs(mean-want) > 0.3 {
		t.Errorf("%.2f s left on average, want %.2f", mean, want)
	}
	if got := f.waiting(); got != 2000 {
		t.Errorf("%d waiting", got)
	}
}

// rounding is a timer that is exact but for its rounding of delays, to tenths of a
// second.
type rounding struct {
	came func(content []byte, at time.Time)
}

func (r *rounding) start(_ context.Context, came func([]byte, time.Time)) (func() error, error) {
	r.came = came
	return func() error { return nil }, nil
}

func (r *rounding) keep(_ context.Context, list []kept) error {
	const tenth = 100 * time.Millisecond
	for _, k := range list {
		time.AfterFunc((time.Until(k.due) + tenth - 1).Truncate(tenth), func() { r.came(k.content, time.Now()) })
	}
	return nil
}

// A timer's rounding is lateness, since messages are wanted at any instants.
func TestRoundingIsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := flow{rate: 1000, delays: span{time.Second, 3 * time.Second}, prefill: true, warm: time.Second, measure: 10 * time.Second}
		o, err := f.through(t.Context(), &rounding{}, minBody, time.Minute, func(int) {})
		if err != nil || o.missing > 0 || !o.kept {
			t.Fatalf("%+v, %v", o, err)
		}
		for share, want := range map[float64]float64{0.5: 49.5, 0.99: 98} {
			if got := lateness.Percentile(o.values, share); math.Abs(got-want) > 2 {
				t.Errorf("%v of the messages are up to %v ms late, want %v", share, got, want)
			}
		}
	})
}

func TestLatenessCountsTheWindow(t *testing.T) {
	l := newArrivals()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	var numbers []uint64
	for _, due := range []int{50, 150} { // before the window is known
		numbers = append(numbers, l.number(at(due)))
	}
	l.open(at(100), at(200))
	for _, due := range []int{99, 100, 199, 200} {
		numbers = append(numbers, l.number(at(due)))
	}
	l.complete()
	for i, due := range []int{50, 150, 99, 100, 199, 200} {
		for range 2 { // a repetition does not count
			l.came(body(minBody, numbers[i]), at(due+10*i))
		}
	}
	values, missing, err := l.wait(t.Context(), time.Minute)
	if err != nil || missing != 0 {
		t.Fatal(missing, err)
	}
	if want := []float64{10, 30, 40}; len(values) != 3 || values[0] != want[0] || values[1] != want[1] || values[2] != want[2] {
		t.Errorf("got %v, want %v", values, want)
	}
}

func TestMissingMessagesAreLate(t *testing.T) {
	l := newArrivals()
	now := time.Now()
	l.open(now, now.Add(time.Second))
	l.number(now)
	l.complete()
	values, missing, err := l.wait(t.Context(), 3*time.Millisecond)
	if err != nil || missing != 1 || len(values) != 1 || values[0] != 3 {
		t.Errorf("got %v, %d missing (%v)", values, missing, err)
	}
}

func TestSearch(t *testing.T) {
	for _, limit := range []float64{400, 3000, 40_000, 1e9} {
		e := &entry{}
		for rate := e.next(); rate > 0; rate = e.next() {
			if rate <= limit {
				e.held = rate
			} else {
				e.failed = rate
			}
		}
		want := min(limit, fastest)
		if limit < slowest {
			want = 0
		}
		if e.held > want || e.held < want*0.9 {
			t.Errorf("limit %v: found %v", limit, e.held)
		}
	}
}

// The report of a result that has everything is a page with its plots.
func TestReport(t *testing.T) {
	r := &Result{Started: time.Now(), Machine: machine()}
	for _, name := range Scenarios() {
		s := &Scenario{Name: name, Servers: []string{"RabbitMQ <4>"}}
		for i, c := range []string{"ours", "theirs"} {
			k := s.find("a group", c, i == 1)
			for v := range 3 {
				k.add(metricRate, "messages/s", float64(1000*(i+1)+v))
			}
			k.recordLateness([]float64{1, 2, 900})
		}
		s.ratio("rate", s.Cases[0], s.Cases[1], metricRate, 0.4, false)
		s.notef("a note")
		r.Scenarios = append(r.Scenarios, s)
	}
	dir := filepath.Join(t.TempDir(), "made")
	if err := r.WriteReport(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Scenarios() {
		picture, err := os.ReadFile(filepath.Join(dir, name+"-1.png"))
		if err != nil || !bytes.HasPrefix(picture, []byte("\x89PNG")) {
			t.Errorf("%s: no picture (%v)", name, err)
		}
		if !bytes.Contains(page, []byte(`src="`+name+`-1.png"`)) {
			t.Errorf("%s: the page does not show its picture", name)
		}
	}
	if !bytes.Contains(page, []byte("RabbitMQ &lt;4&gt;")) {
		t.Error("the page does not escape")
	}
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	if n := len(Scenarios()); !strings.Contains(table.String(), fmt.Sprintf("%d of %d met", n, n)) {
		t.Errorf("table:\n%s", table.String())
	}
}
