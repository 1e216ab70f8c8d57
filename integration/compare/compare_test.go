package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/integration/bench"
	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// earliest returns the minimum lateness of a task in milliseconds. It is negative for asynq, which rounds due times
// down to whole seconds, and for the plugin, whose broker rounds its clock down to milliseconds.
func (c contender) earliest() float64 {
	switch c.name {
	case byAsynq, quickAsynq:
		return -1000
	case byPlugin:
		return -2
	}
	return 0
}

// Every contender handles every task once. Only contenders that round due times down handle tasks early.
func TestContenders(t *testing.T) {
	t.Parallel()
	e := ready(t)
	for _, c := range slices.Concat(contenders(), tuned()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if reason, missing := e.without[c.keeper]; missing {
				t.Skip("skipped: " + reason)
			}
			r := &run{env: e, sizes: defaults(true)}
			err := r.with(t.Context(), c, func(s system) error {
				if _, err := e.usage(t.Context(), c); err != nil {
					t.Logf("the processor time is unknown: %v", err) // the servers may run on another machine
				}
				try(t, s, c.earliest())
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// try schedules tasks individually and in a batch, and checks that they are handled once and not too early.
func try(t *testing.T, s system, earliest float64) {
	t.Helper()
	l := newLedger()
	l.effects = true
	const n = 20
	err := working(t.Context(), s, l, func() error {
		var list []task
		for i := range n {
			list = append(list, task{int64(i), time.Now().Add(time.Duration(200+50*i) * time.Millisecond)})
		}
		if err := store(t.Context(), s, l, list[:n/2]); err != nil {
			return err
		}
		for _, one := range list[n/2:] {
			if err := s.schedule(t.Context(), one); err != nil {
				return err
			}
			l.asked(one)
		}
		missing, err := l.wait(t.Context(), servers.Patience)
		if missing > 0 {
			t.Errorf("%d of %d tasks were not handled, want 0", missing, n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	times, err := effectsOf(t.Context(), s, l)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if times[int64(i)] != 1 {
			t.Errorf("task %d has %d effects, want 1", i, times[int64(i)])
		}
	}
	late := l.lateness()
	if late[0] < earliest {
		t.Errorf("a task was handled %g ms early, want at most %g ms", -late[0], -earliest)
	}
}

// The plugin's contender works with the in-memory broker too, which does not need the plugin's file.
func TestPluginInMemory(t *testing.T) {
	t.Parallel()
	srv := amqptest.NewServer(amqptest.Options{Version: "4.0.5", Plugin: true})
	defer srv.Close()
	s, err := openPlain(t.Context(), func() (*amqp.Connection, error) {
		return amqp.DialConfig(srv.URL(), amqp.Config{Dial: func(network, addr string) (net.Conn, error) { return srv.Dial(context.Background(), network, addr) }})
	}, "tasks", &plugged{})
	if err != nil {
		t.Fatal(err)
	}
	try(t, s, contender{name: byPlugin}.earliest())
	if err := s.close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Every workload records figures. The test runs only one contender, because TestContenders runs all of them. It is not
// parallel, because it kills Redis.
func TestWorkloads(t *testing.T) {
	e := ready(t)
	dir := t.TempDir()
	for _, w := range workloads() {
		one, from := bySet, contenders
		switch w.name {
		case "statements":
			one = byTable // Redis executes no SQL statements
		case "starved":
			one, from = "1: "+byTable, starvable
		case "pools":
			one, from = "2: "+byTable, pooled
		}
		w.contenders = func() []contender {
			return slices.DeleteFunc(from(), func(c contender) bool { return c.name != one })
		}
		s := defaults(true)
		s.patience = 2 * time.Second // Redis loses tasks when it is killed
		r, err := measure(t.Context(), e, w, s, func(line string) { t.Log(line) })
		if err != nil {
			t.Fatal(err)
		}
		if err := r.save(dir); err != nil {
			t.Fatal(err)
		}
		if r.Scenario.Notes != nil {
			t.Logf("%q", r.Scenario.Notes)
		}
	}
	all, err := load(dir)
	if err != nil || len(all) != len(workloads()) {
		t.Fatalf("loaded %d results (error %v), want %d", len(all), err, len(workloads()))
	}
	for _, r := range all {
		if r.Name == "starved" && e.without[limits] != "" {
			t.Logf("the workload starved has no figures: %s", e.without[limits])
			continue
		}
		for _, table := range r.tables() {
			if len(table) < 2 && r.Name != "backlog" { // which may be without the memory of a server on another machine
				t.Errorf("workload %s: got the table %q, want a row with figures", r.Name, table)
			}
		}
	}
	if err := all.publish(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "compare-rates.svg")); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "compare.md")); err != nil || !strings.Contains(string(text), "| "+bySet+" |") {
		t.Errorf("compare.md: got error %v and\n%s, want %q in it", err, text, "| "+bySet+" |")
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	s := &bench.Scenario{}
	for _, one := range []struct {
		name   string
		values []float64
	}{{byMessages, []float64{8000, 10_000, 9000}}, {byAsynq, []float64{16_400, 21_000, 17_100}}} {
		for _, v := range one.values {
			s.Find("", one.name, false).Add(metricOne, "", v)
		}
	}
	r := &result{Name: "schedule", Scenario: s}
	var text bytes.Buffer
	if err := r.tables()[0].write(&text, true); err != nil {
		t.Fatal(err)
	}
	const want = `| scheduled per second | one at a time | ratio | in batches | ratio |
|---|---|---|---|---|
| rabbitdelay, messages | 9,000 (8,000 to 10,000) | 1 | | |
| asynq | 17,100 (16,400 to 21,000) | 2.0 (1.9 to 2.1) | | |
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	for v, want := range map[float64]string{0: "0", -0.25: "-0.25", 1: "1", 1.96: "2.0", 9.96: "10", 99.6: "100", 123.4: "123", -1234: "-1,230", 1_234_567: "1,230,000"} {
		if got := number(v); got != want {
			t.Errorf("number(%g) = %s, want %s", v, got, want)
		}
	}
}

func TestProcessorTime(t *testing.T) {
	t.Parallel()
	id, p, ok := parseStat([]byte("7 (a) b) S 3 7 7 0 -1 4194560 100 200 0 0 150 50 25 75 20 0 1 0 100\n"))
	if !ok || id != 7 || p != (process{"a) b", 3, 3}) {
		t.Errorf(`parseStat returned id %d, %+v and %t, want 7, the name "a) b" and true`, id, p, ok)
	}
	all := processes{1: {"init", 0, 1}, 2: {"child", 1, 2}, 3: {"grandchild", 2, 4}, 4: {"other", 0, 8}}
	if got := all.cpu(1); got != 7 {
		t.Errorf("the processes used %g s of processor time, want 7", got)
	}
}

func TestPayload(t *testing.T) {
	t.Parallel()
	want := task{7, time.UnixMicro(1_800_000_000_123_456)}
	if got, err := taskOf(want.payload()); err != nil || got != want || len(want.payload()) != payloadSize {
		t.Errorf("taskOf returned %+v (error %v), want %+v from a payload of %v bytes", got, err, want, payloadSize)
	}
	if _, err := taskOf([]byte("short")); err == nil {
		t.Error("taskOf of an invalid payload: got no error")
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"latency"}, {"-repeats", "0"}, {"-nothing"}} {
		if err := command(t.Context(), args, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("the arguments %q: got error %v, want one other than context.Canceled", args, err)
		}
	}
}
