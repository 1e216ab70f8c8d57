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

// `make simulate` sets these flags.
var (
	from  = flag.Uint64("from", 1, "the first seed")
	seeds = flag.Uint64("seeds", 200, "number of seeds; with 1, the trace is printed")

	untilFound = flag.Bool("until-found", false, "stop at the first seed that fails, and do not shrink its scenario")
)

// childEnv makes the test binary run its seeds itself, as a child process.
const childEnv = "RABBITDELAY_SIMULATE_CHILD"

// chunk is the number of seeds for a child process. It is small, so that a deadlock, which ends the child, affects few
// other seeds.
const chunk = 20

// The model explains the history of every scenario. Each core has a child process, which runs its goroutines on one
// thread (GOMAXPROCS=1).
//
// A seed determines the scenario: what each process does at which time, and what fails. All waits are in virtual time,
// which passes only while every goroutine waits, so the seed also determines the order of events at different times. It
// does not determine the order of goroutines that are ready at the same time, the choice between ready cases of a
// select statement, the iteration over maps, or the jitter of back-offs. A failure that depends on those may need
// several runs to occur again.
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

// runChild runs seeds in a child process. If a seed ends that process, the remaining seeds run in another one.
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

// traceEnv is the environment variable with the number of seeds that the parent process runs. If it is 1, the child
// prints the trace.
const traceEnv = "RABBITDELAY_SIMULATE_SEEDS"

// runSeed runs the scenario for a seed, and shrinks it if it fails.
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
