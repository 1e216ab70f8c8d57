//go:build !race

package simulate

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// What `make simulate` sets.
var (
	from  = flag.Uint64("from", 1, "the first seed")
	seeds = flag.Uint64("seeds", 200, "how many seeds; one is shown with its trace")

	untilFound = flag.Bool("until-found", false, "end with the first seed that fails, and do not shrink it")
)

// childEnv makes a process one that runs its seeds itself.
const childEnv = "RABBITDELAY_SIMULATE_CHILD"

// chunk is how many seeds a child has: one that a deadlock ends takes few with it.
const chunk = 20

// Every scenario is explained by the model. Each core has a child, which runs its goroutines on
// one thread (GOMAXPROCS=1).
//
// A seed decides the scenario: who does what, when, and what fails. All waits are in virtual
// time, which passes only when every goroutine waits, so the order of what happens at different
// instants is the seed's as well. What Go decides by itself is not: the order of goroutines that
// are ready at one instant, cases of select that are ready together, iteration over maps, and
// the jitter of back-offs. A failure that depends on those may need some runs to come back.
func TestSeeds(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		for seed := *from; seed < *from+*seeds; seed++ {
			fmt.Println("seed", seed)
			if runSeed(t, seed); *untilFound && t.Failed() {
				return
			}
		}
		return
	}
	if testing.Short() {
		*seeds = min(*seeds, 10)
	}
	starts := make(chan uint64)
	var children sync.WaitGroup
	for range runtime.NumCPU() {
		children.Go(func() {
			for first := range starts {
				if *untilFound && t.Failed() {
					continue
				}
				runChild(t, first, min(chunk, *from+*seeds-first))
			}
		})
	}
	for first := *from; first < *from+*seeds; first += chunk {
		starts <- first
	}
	close(starts)
	children.Wait()
}

// runChild runs seeds in a process, and those after one that ends it in another.
func runChild(t *testing.T, first, n uint64) {
	t.Helper()
	for last := first + n; first < last; first++ {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSeeds$", "-test.timeout=10m",
			fmt.Sprintf("-from=%d", first), fmt.Sprintf("-seeds=%d", last-first), fmt.Sprintf("-until-found=%t", *untilFound))
		child.Env = append(os.Environ(), childEnv+"=1", "GOMAXPROCS=1", fmt.Sprintf("%s=%d", traceEnv, *seeds))
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Error(err)
			return
		}
		var text strings.Builder
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "seed %d", &first); err != nil {
				fmt.Fprintln(&text, lines.Text())
			}
		}
		if child.Wait() != nil {
			t.Errorf("%s\nreplay: make simulate FROM=%d SEEDS=1", text.String(), first)
			if *untilFound {
				return
			}
		}
	}
}

// traceEnv is how many seeds the parent has: of one it shows the trace.
const traceEnv = "RABBITDELAY_SIMULATE_SEEDS"

// runSeed runs the scenario of a seed, and shrinks one that fails.
func runSeed(t *testing.T, seed uint64) {
	t.Helper()
	sc := draw(seed)
	w := execute(t, sc)
	if os.Getenv(traceEnv) == "1" {
		fmt.Println(w.timeline())
	}
	if len(w.wrong) == 0 {
		return
	}
	t.Errorf("seed %d: %s\n%v", seed, strings.Join(w.wrong, "\n  "), sc)
	if *untilFound {
		return
	}
	small := shrink(sc, func(x *scenario) []string { return execute(t, x).wrong })
	t.Logf("shrunk to %d of %d steps: %s\n%v", len(small.Steps), len(sc.Steps), strings.Join(execute(t, small).wrong, "\n  "), small)
}
