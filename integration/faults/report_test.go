package faults

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

func TestRecoveries(t *testing.T) {
	sent := []Sent{
		{ID: "before", Due: at(0), Outcome: Acknowledged, Began: at(0), Ended: at(20)}, // begun before the outage
		{ID: "refused", Due: at(11), Outcome: NotSent, Began: at(11), Ended: at(11.1)},
		{ID: "slow", Due: at(12), Outcome: Acknowledged, Began: at(12), Ended: at(19)},
		{ID: "first", Due: at(12), Outcome: Acknowledged, Began: at(12.5), Ended: at(13)},
	}
	effects := []Effect{
		{"before", at(10.5)}, // late: of the backlog
		{"first", at(12.9)},
		{"slow", at(12.2)},
	}
	injected := []Injected{{Over: at(10)}, {Over: at(12.7)}, {Over: at(12.4)}, {Over: at(30)}}
	recoveries(injected, sent, effects)
	want := []time.Duration{3 * time.Second, -1, 600 * time.Millisecond, -1}
	for i, f := range injected {
		if f.Recovery != want[i] {
			t.Errorf("over at %s: recovery %v, want %v", clock(f.Over), f.Recovery, want[i])
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
			t.Errorf("no line %q in\n%s", want, b.String())
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
	for key, want := range map[string]any{"lost": 0.0, "early": 0.0, "twice": 0.0, "faults": 2.0, "faults_failed": 1.0, "unknown_arrived": 1.0, "broker": "4.3.6"} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if number(-1234567) != "-1,234,567" || number(999) != "999" || number(1000) != "1,000" {
		t.Error(number(-1234567), number(999), number(1000))
	}
}
