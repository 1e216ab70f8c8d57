package conformance_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
)

// envTable is the environment variable with the name of a file for the conformance table. go test shows the log of a
// passing test only with -v.
const envTable = "RABBITDELAY_CONFORMANCE_TABLE"

// place is a cell of the conformance table.
type place struct{ strategy, queueType, line string }

// score has the results of a cell's cases.
type score struct {
	passed, failed, skipped int
	late                    []time.Duration
	instead                 string // why no case ran
}

// scoreboard collects the scores of all cells.
type scoreboard struct {
	mu     sync.Mutex
	scores map[place]*score
	heads  map[string]string   // release line -> the version that was tested
	skips  map[string][]string // reason -> the cells that were skipped
}

func newScoreboard() *scoreboard {
	return &scoreboard{scores: map[place]*score{}, heads: map[string]string{}, skips: map[string][]string{}}
}

func (b *scoreboard) at(p place) *score {
	s := b.scores[p]
	if s == nil {
		s = &score{}
		b.scores[p] = s
	}
	return s
}

// watch counts a case's result when the case has finished.
func (b *scoreboard) watch(t *testing.T, p place) {
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		s := b.at(p)
		switch {
		case t.Failed():
			s.failed++
		case t.Skipped():
			s.skipped++
		default:
			s.passed++
		}
	})
}

// cellEnded records a cell that failed before its first case.
func (b *scoreboard) cellEnded(t *testing.T, p place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.at(p); t.Failed() && s.failed == 0 {
		s.failed++
	}
}

// skip records the reason why a case or a cell did not run. For a whole cell, the table shows short instead of counts.
func (b *scoreboard) skip(p place, where, short, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if short != "" {
		b.at(p).instead = short
	}
	if !slices.Contains(b.skips[reason], where) {
		b.skips[reason] = append(b.skips[reason], where)
	}
}

func (b *scoreboard) late(p place, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.at(p)
	s.late = append(s.late, d)
}

func (b *scoreboard) ran(line, version string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.heads[line] = version
}

func (s *score) String() string {
	if s.instead != "" {
		return s.instead
	}
	text := fmt.Sprintf("%d ok", s.passed)
	if s.failed > 0 {
		text += fmt.Sprintf(", %d FAILED", s.failed)
	}
	if s.skipped > 0 {
		text += fmt.Sprintf(", %d skipped", s.skipped)
	}
	if len(s.late) > 0 {
		slices.Sort(s.late)
		text += fmt.Sprintf(", %d/%d ms", lateness.Percentile(s.late, 0.5).Milliseconds(), lateness.Percentile(s.late, 0.99).Milliseconds())
	}
	return text
}

// table returns the scores as text with a column for each release line.
func (b *scoreboard) table(lines []string, rows []place) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out strings.Builder
	out.WriteString("Conformance: cases by outcome, and lateness (p50/p99) after the requested times, while other cells run\n\n")
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "strategy\tqueues")
	for _, line := range lines {
		fmt.Fprint(w, "\tRabbitMQ "+cmp.Or(b.heads[line], line))
	}
	fmt.Fprintln(w)
	for _, r := range rows {
		fmt.Fprint(w, r.strategy+"\t"+r.queueType)
		for _, line := range lines {
			s := b.scores[place{r.strategy, r.queueType, line}]
			if s == nil {
				s = &score{instead: "did not run"}
			}
			fmt.Fprint(w, "\t"+s.String())
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // writing to memory never fails
	if len(b.skips) > 0 {
		out.WriteString("\nSkipped:\n")
		var notes []string
		for reason, where := range b.skips {
			slices.Sort(where)
			notes = append(notes, "  "+strings.Join(where, ", ")+": "+reason+"\n")
		}
		slices.Sort(notes)
		out.WriteString(strings.Join(notes, ""))
	}
	return out.String()
}

// publish writes the table to the test's log and to the file in envTable.
func (b *scoreboard) publish(t *testing.T, lines []string, rows []place) {
	table := b.table(lines, rows)
	t.Log("\n" + table)
	if file := os.Getenv(envTable); file != "" {
		if err := os.WriteFile(file, []byte(table), 0o644); err != nil {
			t.Errorf("writing the table to the file in %s: %v", envTable, err)
		}
	}
}
