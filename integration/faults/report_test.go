package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestRecoveries(t *testing.T) {
	sent := []Sent{
		{ID: "before", Due: at(0), Outcome: Acknowledged, Began: at(0), Ended: at(20)}, // started before the outage
		{ID: "refused", Due: at(11), Outcome: NotSent, Began: at(11), Ended: at(11.1)},
		{ID: "slow", Due: at(12), Outcome: Acknowledged, Began: at(12), Ended: at(19)},
		{ID: "first", Due: at(12), Outcome: Acknowledged, Began: at(12.5), Ended: at(13)},
	}
	effects := []Effect{
		{"before", at(10.5)}, // late, because of the backlog
		{"first", at(12.9)},
		{"slow", at(12.2)},
	}
	injected := []Injected{{Over: at(10)}, {Over: at(12.7)}, {Over: at(12.4)}, {Over: at(30)}}
	recoveries(injected, sent, effects)
	want := []time.Duration{3 * time.Second, -1, 600 * time.Millisecond, -1}
	for i, f := range injected {
		if f.Recovery != want[i] {
			t.Errorf("fault that was over at %s: got recovery %v, want %v", clock(f.Over), f.Recovery, want[i])
		}
	}
}

// If a run ends before all effects have occurred, the text says what is missing.
func TestUnsettled(t *testing.T) {
	var sent []Sent
	for i := range 7 {
		sent = append(sent, Sent{ID: fmt.Sprint(i), Due: noon, Outcome: Acknowledged})
	}
	check := func(had int) Verdict {
		var effects []Effect
		for _, s := range sent[:had] {
			effects = append(effects, Effect{s.ID, noon})
		}
		return Check(sent, effects, nil)
	}
	for _, c := range []struct {
		had, waiting int
		err          error
		want         string
	}{
		{0, 0, nil, "7 messages without their effect, 0 in queues; without: 0, 1, 2, 3, 4 and 2 more"},
		{5, 2, nil, "2 messages without their effect, 2 in queues; without: 5, 6"},
		{7, 3, nil, "0 messages without their effect, 3 in queues"},
		{6, 0, errors.New("no node answers"), "1 messages without their effect, 0 in queues; without: 6; the last look failed: no node answers"},
	} {
		if got := unsettled(check(c.had), c.waiting, c.err); got != c.want {
			t.Errorf("unsettled returned\n%s, want\n%s", got, c.want)
		}
	}
}

func TestReport(t *testing.T) {
	r := &Report{
		Name: "one node", Strategy: "bucket", QueueType: "quorum", Broker: "4.3.6", Seed: 7,
		Verdict: Check(keptPromises()),
		Injected: []Injected{
			{Fault: Fault{Kind: Kill}, Recovery: 1500 * time.Millisecond},
			{Fault: Fault{Kind: Kill}, Recovery: -1, Mixed: true, Err: errors.New("no")},
		},
	}
	var b strings.Builder
	if err := Print(&b, []*Report{r, r}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for _, want := range [][]string{{"LOST", "0", "0"}, {"acknowledged", "1", "1"}, {"faults", "2", "2"}, {"broker-kill", "2", "1", "1", "1,500", "1,500"}} {
		if !slices.ContainsFunc(lines, func(l string) bool { return slices.Equal(strings.Fields(l), want) }) {
			t.Errorf("got the report\n%[2]s\nwant a line with the fields %[1]q", want, b.String())
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"lost":            0.0,
		"early":           0.0,
		"twice":           0.0,
		"faults":          2.0,
		"faults_failed":   1.0,
		"unknown_arrived": 1.0,
		"broker":          "4.3.6",
	} {
		if got[key] != want {
			t.Errorf("JSON key %s is %v, want %v", key, got[key], want)
		}
	}
	if number(-1234567) != "-1,234,567" || number(999) != "999" || number(1000) != "1,000" {
		t.Errorf("got %s, %s and %s, want -1,234,567, 999 and 1,000", number(-1234567), number(999), number(1000))
	}
}
