package main

import (
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/demo"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
)

// run executes a command line in this process.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = Run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"dmeo":                  `unknown command "dmeo"; see rabbitdelay-lab --help; did you mean demo?`,
		"demo x":                `unexpected argument "x"; see rabbitdelay-lab demo --help`,
		"demo --oders 1":        "unknown flag: --oders; see rabbitdelay-lab demo --help; did you mean --orders?",
		"demo --orders 0":       "--orders: 0; expected 1 to 1000000",
		"demo --posts 0":        "--posts: 0; expected 1 to 1000000",
		"demo --story books":    `--story: "books"; expected orders, posts or all`,
		"demo --log-level loud": `--log-level: "loud"; expected debug, info, warn or error`,
		"bench --messages 0":    "--messages: 0; expected 1 or more",
		"bench --strategy ttl":  "--strategy: bench compares all strategies; omit the flag",
		"bench fly":             `benchmark not possible: scenario "fly"; expected publish, consume, telemetry, schedule, bulk, console, latency, sustain, native, cost, declare, pending`,
	} {
		code, stdout, stderr := run(t, strings.Fields(args)...)
		if code != program.ExitError || stdout != "" || stderr != "rabbitdelay-lab: "+want+"\n" {
			t.Errorf("%s: got exit code %d, Stdout %q and Stderr %q, want %d, no Stdout and the error %q", args, code, stdout, stderr, program.ExitError, want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, c := range command(program.New(&term.Terminal{})).Commands() {
		code, stdout, stderr := run(t, c.Name(), "--help")
		if code != 0 || stderr != "" || !strings.Contains(stdout, "Examples:\n  rabbitdelay-lab "+c.Name()) {
			t.Errorf(`%s --help: got exit code %d, Stdout %s and Stderr %q, want 0, no Stderr and %q in Stdout`,
				c.Name(), code, stdout, stderr, "Examples:\n  rabbitdelay-lab "+c.Name())
		}
	}
}

func TestDemoStories(t *testing.T) {
	for story, want := range map[string]demo.Options{"all": {Orders: 7, Posts: 8}, "orders": {Orders: 7}, "posts": {Posts: 8}} {
		o := demo.Options{Orders: 7, Posts: 8}
		if err := told(&o, story); err != nil || o != want {
			t.Errorf("%s: got %+v, %v, want no error and %+v", story, o, err, want)
		}
	}
}
