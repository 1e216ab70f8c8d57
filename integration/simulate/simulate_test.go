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

// These flags are set by `make simulate`.
var (
	from  = flag.Uint64("from", 1, "the first seed")
	seeds = flag.Uint64("seeds", 200, "how many seeds; one is shown with its trace")

	untilFound = flag.Bool("until-found", false, "end with the first seed that fails, and do not shrink it")
)

// childEnv tells a process to run its seeds itself.
const childEnv = "RABBITDELAY_SIMULATE_CHILD"

// chunk is the number of seeds of a child, so that a deadlock, which ends the child, ends few other
// seeds.
const chunk = 20

// The model explains every scenario. Each core has a child process, which runs its goroutines on one
// thread (GOMAXPROCS=1).
//
// A seed determines the scenario: which process does what, when, and what fails. All waits are in
// virtual time, which passes only while every goroutine waits, so the seed also determines the order
// of events at different times. It does not determine what Go decides: the order of goroutines
// that are ready at the same time, the choice between cases of select that are ready together,
// iteration over maps, and the jitter of back-offs. A failure that depends on those may need several
// runs to occur again.
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

// runChild runs seeds in a child process. If a seed ends that process, the seeds after it run in
// another one.
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

// traceEnv holds the number of seeds that the parent process runs. If there is only one, the child prints the trace.
const traceEnv = "RABBITDELAY_SIMULATE_SEEDS"

// runSeed runs the scenario of a seed, and shrinks it if it fails.
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
