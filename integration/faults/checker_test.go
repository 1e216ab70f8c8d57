package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// keptPromises returns a small ledger without violations, to which each test adds a violation.
func keptPromises() ([]Sent, []Effect, []Seen) {
	sent := []Sent{
		{ID: "a", Due: noon, Outcome: Acknowledged},
		{ID: "b", Due: noon, Outcome: Unknown},
		{ID: "c", Due: noon, Outcome: Unknown},
		{ID: "d", Due: noon, Outcome: NotSent},
	}
	effects := []Effect{{"a", noon}, {"b", noon.Add(time.Second)}}
	seen := []Seen{
		{"a", 1, noon, noon}, {"a", 1, noon, noon.Add(time.Second)},
		{"b", 1, noon, noon.Add(time.Second)}, {"b", 2, noon.Add(time.Minute), noon.Add(time.Minute)},
	}
	return sent, effects, seen
}

func TestKeptPromises(t *testing.T) {
	v := Check(keptPromises())
	if !v.Clean() || len(v.Broken) != 0 {
		t.Fatalf("got %v, want a verdict without violations", v)
	}
	want := Verdict{Messages: 4, Acknowledged: 1, NotSent: 1, Unknown: 2, Arrived: 1, Effects: 2, Delivered: 4, Duplicates: 1, Retries: 1}
	got := v
	got.Lateness = nil
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if v.Earliest != 0 || v.Percentile(1) != time.Second || v.Percentile(0.1) != 0 {
		t.Errorf("got earliest %v, 10th percentile %v and maximum %v, want 0, 0 and 1s", v.Earliest, v.Percentile(0.1), v.Percentile(1))
	}
}

func TestPlantedViolations(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*[]Sent, *[]Effect, *[]Seen)
		want  Violation
		count func(Verdict) int
	}{
		"lost": {
			func(_ *[]Sent, e *[]Effect, _ *[]Seen) { *e = (*e)[1:] },
			Lost, func(v Verdict) int { return v.Lost },
		},
		"early by a microsecond": {
			func(_ *[]Sent, e *[]Effect, _ *[]Seen) { (*e)[0].At = noon.Add(-time.Microsecond) },
			Early, func(v Verdict) int { return v.Early },
		},
		"early though its outcome was unknown": {
			func(_ *[]Sent, e *[]Effect, _ *[]Seen) { (*e)[1].At = noon.Add(-time.Hour) },
			Early, func(v Verdict) int { return v.Early },
		},
		"a handler runs early and its effect does not": {
			func(_ *[]Sent, _ *[]Effect, s *[]Seen) { (*s)[0].At = noon.Add(-time.Millisecond) },
			Early, func(v Verdict) int { return v.Early },
		},
		"a retry runs early": {
			func(_ *[]Sent, _ *[]Effect, s *[]Seen) { (*s)[3].At = noon.Add(time.Minute - 1) },
			Early, func(v Verdict) int { return v.Early },
		},
		"a delivery whose header lies about its due time": {
			func(_ *[]Sent, _ *[]Effect, s *[]Seen) { (*s)[0].Due, (*s)[0].At = noon.Add(-time.Hour), noon.Add(-1) },
			Early, func(v Verdict) int { return v.Early },
		},
		"doubled": {
			func(_ *[]Sent, e *[]Effect, _ *[]Seen) { *e = append(*e, Effect{"a", noon.Add(time.Hour)}) },
			Twice, func(v Verdict) int { return v.Twice },
		},
		"doubled though its outcome was unknown": {
			func(_ *[]Sent, e *[]Effect, _ *[]Seen) { *e = append(*e, Effect{"b", noon}) },
			Twice, func(v Verdict) int { return v.Twice },
		},
		"phantom of nobody": {
			func(_ *[]Sent, e *[]Effect, _ *[]Seen) { *e = append(*e, Effect{"x", noon}) },
			Phantom, func(v Verdict) int { return v.Phantom },
		},
		"phantom of one that was not sent": {
			func(_ *[]Sent, e *[]Effect, _ *[]Seen) { *e = append(*e, Effect{"d", noon}) },
			Phantom, func(v Verdict) int { return v.Phantom },
		},
		"an id used twice by the workload": {
			func(s *[]Sent, _ *[]Effect, _ *[]Seen) { *s = append(*s, (*s)[0]) },
			Phantom, func(v Verdict) int { return v.Phantom },
		},
	} {
		t.Run(name, func(t *testing.T) {
			sent, effects, seen := keptPromises()
			c.plant(&sent, &effects, &seen)
			v := Check(sent, effects, seen)
			if v.Clean() || c.count(v) != 1 || v.Lost+v.Early+v.Twice+v.Phantom != 1 {
				t.Fatalf("got %v, want exactly one violation: %s", v, c.want)
			}
			if len(v.Broken) != 1 || v.Broken[0].Violation != c.want || !strings.Contains(v.String(), v.Broken[0].ID+": ") {
				t.Errorf("got the verdict %v, want one broken promise, %v, and a text containing %q", v, c.want, v.Broken[0].ID+": ")
			}
		})
	}
}

// Check finds exactly the violations that are planted in a large ledger.
func TestAnyNumberOfViolations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sent []Sent
		var effects []Effect
		want := map[Violation]int{}
		for i := range rapid.IntRange(0, 300).Draw(t, "messages") {
			s := Sent{ID: fmt.Sprint(i), Due: noon.Add(time.Duration(i) * time.Second), Outcome: Outcome(rapid.IntRange(0, 2).Draw(t, "outcome"))}
			sent = append(sent, s)
			n := rapid.IntRange(0, 3).Draw(t, "effects")
			for range n {
				late := rapid.Int64Range(-1, 1).Draw(t, "lateness")
				effects = append(effects, Effect{s.ID, s.Due.Add(time.Duration(late))})
				if late < 0 {
					want[Early]++
				}
			}
			if n == 0 && s.Outcome == Acknowledged {
				want[Lost]++
			}
			if n > 1 {
				want[Twice]++
			}
			if n > 0 && s.Outcome == NotSent {
				want[Phantom]++
			}
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "phantoms") {
			effects = append(effects, Effect{fmt.Sprint("phantom ", i), noon})
			want[Phantom]++
		}
		v := Check(sent, effects, nil)
		got := map[Violation]int{Lost: v.Lost, Early: v.Early, Twice: v.Twice, Phantom: v.Phantom}
		for _, kind := range []Violation{Lost, Early, Twice, Phantom} {
			if got[kind] != want[kind] {
				t.Fatalf("%s: found %d violations, want the %d that were planted", kind, got[kind], want[kind])
			}
		}
		if len(v.Broken) > 4*maxBroken {
			t.Fatalf("%d violations are listed, want at most %d", len(v.Broken), 4*maxBroken)
		}
	})
}
