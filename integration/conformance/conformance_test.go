package conformance_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/integration/tier"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// foreignTypes has the queue types of other systems' layouts. The names of their queues do not contain the type, so
// each layout is tested with one type only.
var foreignTypes = map[string]topology.QueueType{dlx.LayoutNServiceBus: topology.Quorum, dlx.LayoutCelery: topology.Classic}

// cellsAtOnce is the number of cells that run concurrently on one broker. Their cases mostly wait, all at the same
// time.
const cellsAtOnce = 2

// target is a broker on which cells run.
type target struct {
	url    string
	dial   func(ctx context.Context, network, addr string) (net.Conn, error) // nil for TCP
	shared bool                                                              // whether the broker outlives the suite
}

// TestConformance runs the same cases in every cell of the matrix of strategies, queue types and brokers. Cells that
// are not available are skipped with the reason. Without any broker, the test fails after it has run the cells in
// memory.
func TestConformance(t *testing.T) {
	t.Parallel()
	skip := os.Getenv(servers.EnvSkip) == "1"
	var here, lines []string
	if !skip {
		var err error
		if here, err = broker.Versions(t.Context()); err != nil {
			t.Error(err)
			skip = true
		}
	}
	if !skip {
		lines = slices.Clone(suite.ConformanceLines)
	}
	for _, line := range here {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	slices.SortFunc(lines, compareLines)
	lines = append(lines, suite.Memory)
	var rows []place
	for _, s := range suite.ConformanceStrategies {
		for _, qt := range suite.ConformanceTypes {
			if only, ok := foreignTypes[s]; !ok || only == qt {
				rows = append(rows, place{strategy: s, queueType: string(qt)})
			}
		}
	}

	board := newScoreboard()
	t.Cleanup(func() { board.publish(t, lines, rows) })
	older := lines[:max(0, len(lines)-2)] // without the newest line and the broker in memory
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			if line == suite.Memory {
				conformanceInMemory(t, board, rows)
				return
			}
			cells := slices.DeleteFunc(slices.Clone(rows), func(r place) bool {
				name := r.strategy + " " + r.queueType
				leftOut := slices.Contains(older, line) && !slices.Contains(tier.Sample(name, older), line)
				if leftOut {
					board.skip(place{r.strategy, r.queueType, line}, line+" "+name, "not sampled", "make test-servers runs each strategy on the newest version and on one older one")
				}
				return leftOut
			})
			conformanceLine(t, board, line, cells, slices.Contains(here, line))
		})
	}
}

// conformanceInMemory runs the cells on amqptest, in virtual time. Each case has its own broker. The native
// strategy runs on the first version that supports it.
func conformanceInMemory(t *testing.T, board *scoreboard, rows []place) {
	board.ran(suite.Memory, amqptest.DefaultVersion+" in memory, native 4.4.0")
	cell := func(t *testing.T, p place) {
		options := amqptest.Options{Plugin: true}
		if p.strategy == "native" {
			options.Version = "4.4.0"
		}
		for _, k := range conformanceCases {
			t.Run(k.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					srv := amqptest.NewServer(options)
					t.Cleanup(srv.Close)
					runCase(t, board, openCell(t, board, target{url: srv.URL(), dial: srv.Dial}, p, true), k)
				})
			})
		}
	}
	runCells(t, board, cell, rows, suite.Memory, lacks{}, runtime.GOMAXPROCS(0))
}

// conformanceLine runs the cells of one release line on one broker.
func conformanceLine(t *testing.T, board *scoreboard, line string, rows []place, here bool) {
	b, err := startLine(t, line, here)
	if err != nil {
		reason := fmt.Sprintf("no broker: %v", err)
		for _, r := range rows {
			r.line = line
			board.skip(r, line, "no broker", reason)
		}
		if here {
			t.Fatalf("the broker on this machine could not be tested: %v", reason)
		}
		t.Skip("skipped: " + reason)
	}
	board.ran(line, b.Version())
	without := lacks{"plugin": pluginMissing(t, b, line), "native": suite.InstantsIgnored(t, b)}

	on := target{url: b.URL(), shared: b.Source() == broker.Environment}
	cell := func(t *testing.T, p place) { runCell(t, board, on, p, without["plugin"] == "") }
	runCells(t, board, cell, rows, line, without, cellsAtOnce)
}

// lacks maps the name of a strategy to the reason why a broker does not support it, or to "" if it does.
type lacks map[string]string

// runCells runs the cells of one release line, atOnce of them concurrently.
func runCells(t *testing.T, board *scoreboard, run func(*testing.T, place), rows []place, line string, without lacks, atOnce int) {
	slots := make(chan struct{}, atOnce)
	var cells sync.WaitGroup
	for _, r := range rows {
		r.line = line
		slots <- struct{}{}
		cells.Go(func() {
			defer func() { <-slots }()
			t.Run(strings.ReplaceAll(r.strategy, " ", "-")+"/"+r.queueType, func(t *testing.T) {
				if reason := without[r.strategy]; reason != "" {
					board.skip(r, line+" "+r.strategy, "no "+r.strategy, reason)
					t.Skip("skipped: " + reason)
				}
				t.Cleanup(func() { board.cellEnded(t, r) })
				run(t, r)
			})
		})
	}
	cells.Wait()
}

// patientBroker gives a busy broker more time for a channel operation. By default, it closes the whole connection,
// which all cases of a cell share, after 15 s (error 541).
const patientBroker = "[{rabbit, [{channel_operation_timeout, 120000}]}]."

// startLine starts a broker of a release line, with the plugin if it is available. It tries even if the line is not
// installed, because Docker may be able to pull the image.
func startLine(t *testing.T, line string, here bool) (*broker.Broker, error) {
	if os.Getenv(broker.EnvURL) != "" && !here {
		return nil, fmt.Errorf("%s names a broker of another version", broker.EnvURL)
	}
	path, _ := broker.PluginAvailable(line)
	options := broker.Options{Version: line, Plugin: path != "", Advanced: patientBroker, Log: func(line string) { t.Log(line) }}
	if here {
		return broker.Shared(t, options), nil
	}
	b, err := broker.Start(t.Context(), options)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("closing the broker: %v", err)
		}
	})
	return b, nil
}

// pluginMissing returns the reason why the broker does not have the plugin, or "" if it does.
func pluginMissing(t *testing.T, b *broker.Broker, line string) string {
	err := live.ProbePlugin(t.Context(), func(context.Context) (*amqp.Connection, error) { return amqp.Dial(b.URL()) })
	path, reason := broker.PluginAvailable(line)
	switch {
	case err == nil:
		return ""
	case !errors.Is(err, live.ErrNoPlugin):
		t.Fatal(err)
	case b.Source() == broker.Environment:
		return "the broker at " + broker.EnvURL + " has no x-delayed-message plugin"
	case path != "":
		t.Errorf("the broker was started with the plugin %s, but probing for it failed: %v", path, err)
		return "the plugin did not load"
	}
	return reason
}

// runCell runs all cases of one cell: first the case whose lateness the table shows, then the others concurrently.
func runCell(t *testing.T, board *scoreboard, on target, p place, pluginToo bool) {
	began := time.Now()
	c := openCell(t, board, on, p, pluginToo)
	opened := time.Since(began)
	run := func(k conformanceCase) {
		t.Run(k.name, func(t *testing.T) { runCase(t, board, c, k) })
	}
	run(conformanceCases[0])
	// t.Parallel would run only as many cases as there are processors, but the cases mostly wait for their messages.
	var cases sync.WaitGroup
	for _, k := range conformanceCases[1:] {
		cases.Go(func() { run(k) })
	}
	cases.Wait()
	t.Logf("the cell was ready after %v, and its cases took %v", opened.Round(time.Millisecond), (time.Since(began) - opened).Round(time.Millisecond))
}

func runCase(t *testing.T, board *scoreboard, c *cell, k conformanceCase) {
	board.watch(t, c.place)
	if reason := c.cannot(k.needs); reason != "" {
		board.skip(c.place, c.strategy+" "+k.name, "", reason)
		t.Skip("skipped: " + reason)
	}
	k.run(t, c)
}

// compareLines compares release lines by number, so that 3.9 is before 3.10.
func compareLines(a, b string) int {
	number := func(line string) int {
		major, minor, _ := strings.Cut(line, ".")
		x, _ := strconv.Atoi(major)
		y, _ := strconv.Atoi(minor)
		return x*1000 + y
	}
	return cmp.Compare(number(a), number(b))
}
