package layout

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

// A relay with recent heartbeats counts as running, and one without does not, regardless of the difference between the
// clocks of the database and this machine.
func TestStatusOfRelaysByTheDatabasesClock(t *testing.T) {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for _, skew := range []time.Duration{0, -time.Hour, time.Hour} {
		for since, running := range map[time.Duration]bool{5 * time.Second: true, 10 * time.Minute: false} {
			var text strings.Builder
			p := &statusPage{Table: term.NewTable(&text), Status: status.Status{At: at, Tasks: &status.Tasks{
				Skew: status.Span(skew), Relays: []taskview.Relay{{Name: "shop:1", Seen: at.Add(skew - since)}},
			}}}
			p.tasks()
			p.relays()
			if err := p.Flush(); err != nil {
				t.Fatalf("%v: %v", since, err)
			}
			got := text.String()
			if strings.Contains(got, "no heartbeat since") == running || strings.Contains(got, "the database's clock, by which tasks are due and relays run, is 1h0m0s") != (skew != 0) {
				t.Errorf("clock difference %v, last heartbeat %v ago: got\n%s\nwant \"no heartbeat since\": %t, and the note about the clock: %t", skew, since, got, !running, skew != 0)
			}
		}
	}
}

// The first lines of a status stay visible in a window of any size.
func TestOnScreen(t *testing.T) {
	text := "one\ntwo is long\nthree\nfour\n"
	for size, want := range map[[2]int]string{
		{80, 10}: text,
		{80, 5}:  text,
		{80, 4}:  "one\ntwo is long\n... 2 more lines; a taller window shows them\n",
		{5, 10}:  "one\ntwo …\nthree\nfour\n",
	} {
		if got := onScreen(text, size[0], size[1]); got != want {
			t.Errorf("window size %v: got %q, want %q", size, got, want)
		}
	}
}
