package lab

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/integration/bench"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func (a *app) benchCommand() *cobra.Command {
	var o bench.Options
	var report string
	c := &cobra.Command{
		Use:   "bench [SCENARIO...]",
		Short: "Measure speed, lateness and memory against the alternatives",
		Long: `bench measures rabbitdelay against its alternatives, in alternation on the same
broker: the raw client with a plain queue, a PostgreSQL table and a Redis
sorted set polled every second, and the x-delayed-message plugin. Its results
are ratios of the two.

Scenarios, all unless some are named:
` + bench.Help() + `
The broker is the one at --url or AMQP_URL, which gets queues with names of their
own that are removed; else a container or a private node is started. PostgreSQL
and Redis are started from the installed programs; without them their baselines
are left out. Run it on an otherwise idle machine; other figures mean little.

The exit code is 0 even when targets are missed, because they depend on the machine.`,
		Example: `  rabbitdelay-lab bench --quick
  rabbitdelay-lab bench publish consume --queue-type classic --messages 100000
  rabbitdelay-lab bench --report report --json`,
		ValidArgs: bench.Scenarios(),
		Args:      cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o.Scenarios = args
			return a.bench(c, o, report)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.Quick, "quick", false, "make everything small: shows in a few minutes that it works, figures mean nothing")
	f.IntVar(&o.Messages, "messages", 0, "messages per repeat of publish, consume, telemetry, schedule and cost (default 30000)")
	f.IntVar(&o.Rate, "rate", 0, "messages per second of latency, and tasks of schedule and bulk (default 1000)")
	f.IntVar(&o.Repeats, "repeats", 0, "repeats of each case (default 3; latency at most 2)")
	f.IntVar(&o.Pending, "pending", 0, "waiting messages of pending, and tasks that bulk moves and console shows (default 1000000)")
	f.IntVar(&o.Body, "body", 0, "bytes of each body (default 256)")
	f.IntVar(&o.Concurrency, "concurrency", 0, "handlers of consume (default 64)")
	f.StringVar(&report, "report", "", "write result.json with every value, and the tables as result.md, into this folder")
	return c
}

func (a *app) bench(c *cobra.Command, o bench.Options, report string) error {
	for _, flag := range []string{"messages", "rate", "repeats", "pending", "body", "concurrency"} {
		if n, err := c.Flags().GetInt(flag); a.Given(flag) && (err != nil || n < 1) {
			return fmt.Errorf("--%s: %d; expected 1 or more", flag, n)
		}
	}
	if a.Given("strategy") {
		return fmt.Errorf("--strategy: bench compares the strategies and takes none")
	}
	cfg, err := a.Load(nil)
	if err != nil {
		return err
	}
	if a.Given("queue-type") {
		o.QueueTypes = []topology.QueueType{cfg.Delay.QueueType}
	}
	o.URL = string(cfg.FirstURL())
	o.Log = func(line string) { a.Notef("%s", line) }
	o.Progress = func(what string, total int) (func(int), func()) {
		bar := a.Progress(total, what)
		return bar.Add, bar.Clear
	}
	result, err := bench.Run(c.Context(), o)
	if result == nil || len(result.Scenarios) == 0 {
		return err
	}
	// What was measured until an error or an interrupt took its time.
	return errors.Join(err, a.showBench(result, report))
}

func (a *app) showBench(result *bench.Result, report string) error {
	if report != "" {
		if err := result.WriteReport(report); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
		a.Notef("report: %s", strings.TrimSuffix(report, "/")+"/result.md")
	}
	if a.JSON {
		return a.PrintJSON(result)
	}
	return result.Write(a.Stdout, bench.Text)
}
