// Command lab demonstrates and measures rabbitdelay, on servers that it starts or on existing servers.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/integration/bench"
	"github.com/rabbitdelay/rabbitdelay/integration/demo"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func main() { os.Exit(program.Main(Run)) }

type app struct{ *program.Program }

// Run executes the command line and returns the process's exit code. Results go to stdout, and errors, logs and
// progress go to stderr.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return program.Run(ctx, command, args, stdin, stdout, stderr)
}

func command(p *program.Program) *cobra.Command {
	a := &app{p}
	root := &cobra.Command{
		Use:   "rabbitdelay-lab",
		Short: "Show and measure delayed messages on a stock RabbitMQ",
		Long: `rabbitdelay-lab runs a demo, which shows that no message is early, lost or
handled twice, and a benchmark, which measures throughput and lateness. Both use
the broker at --url or AMQP_URL. If neither is set, they start a broker and stop
it at the end.

Settings come from flags, the environment, the YAML file and defaults, as for
rabbitdelay; "rabbitdelay settings" lists them.

Results go to standard output, everything else to standard error. With --json both
are JSON, one object per line: errors as {"error":"…"}, notes as {"note":"…"}.

Exit codes:
    0  success
    1  error, including wrong usage; demo: a guarantee was broken
  130  Ctrl-C`,
		Example: `  rabbitdelay-lab demo
  rabbitdelay-lab bench --quick`,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	p.Flags(root)
	root.AddCommand(a.demoCommand(), a.benchCommand())
	return root
}

func (a *app) demoCommand() *cobra.Command {
	var o demo.Options
	var story string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Cancel unpaid orders and publish posts in time, once each, on a real broker and database",
		Long: `demo runs two scenarios at the same time, or one of them (--story).

Orders: orders are placed within eight seconds, each with a message that is due 4 to
8 seconds later. About half of the orders are paid before that. Two consumers, which
receive some of the messages twice, cancel the other half.

Posts: each post is scheduled as a task in the transaction that writes the post, due
3 to 6 seconds later. Some are rescheduled, cancelled or run immediately, some of
them exactly when they are due. Each post must be published once, at its last due
time, unless it was cancelled.

demo prints a link to the console, where you can watch both. With --hold the console
stays open, and tasks that you schedule there are executed.

At the end, demo compares its record of what happened with the database. With the ttl
strategy, which only supports declared delays, it runs only the orders.

The broker is the one at --url or AMQP_URL. Without one, demo starts a container if
Docker has or can pull an image, or else a private node of an installed
rabbitmq-server. The database is SQLite in a temporary directory, or with --db a
schema (MySQL: a database) that the demo creates on that server. An existing SQLite
file is not changed. The demo removes everything that it created.

With --json the last line is one object. The exit code is 1 if anything was early,
lost or handled twice, or was published although it was cancelled.`,
		Example: `  rabbitdelay-lab demo
  rabbitdelay-lab demo --hold
  rabbitdelay-lab demo --story posts --posts 1000
  rabbitdelay-lab demo --orders 2000 --queue-type classic --json
  rabbitdelay-lab demo --url amqp://user:password@host/ --db postgres://user:password@host/shop`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := told(&o, story); err != nil {
				return err
			}
			return demo.Run(c.Context(), a.Program, o)
		},
	}
	f := c.Flags()
	program.Setting(f, "database.url", "db", "database server: postgres://… or mysql://… (default SQLite)")
	f.IntVar(&o.Orders, "orders", 200, "number of orders")
	f.IntVar(&o.Posts, "posts", 100, "number of posts")
	f.StringVar(&story, "story", "all", "orders, posts or all")
	f.BoolVar(&o.Hold, "hold", false, "keep the console open after the demo, until Ctrl-C")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "show Docker's whole error if there is no container image")
	_ = c.RegisterFlagCompletionFunc("story", cobra.FixedCompletions([]string{"all", "orders", "posts"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return c
}

// told checks the numbers and sets the number of a story that is not selected to 0.
func told(o *demo.Options, story string) error {
	const most = 1_000_000
	switch {
	case o.Orders < 1 || o.Orders > most:
		return fmt.Errorf("--orders: %d; expected 1 to %d", o.Orders, most)
	case o.Posts < 1 || o.Posts > most:
		return fmt.Errorf("--posts: %d; expected 1 to %d", o.Posts, most)
	case story == "orders":
		o.Posts = 0
	case story == "posts":
		o.Orders = 0
	case story != "all":
		return fmt.Errorf("--story: %q; expected orders, posts or all", story)
	}
	return nil
}

func (a *app) benchCommand() *cobra.Command {
	var o bench.Options
	var report string
	c := &cobra.Command{
		Use:   "bench [SCENARIO...]",
		Short: "Measure speed, lateness and memory against the alternatives",
		Long: `bench compares rabbitdelay with its alternatives: the raw client with a plain
queue, a PostgreSQL table and a Redis sorted set that are polled every second, and
the x-delayed-message plugin. It measures both in turn on the same broker, and
prints the ratio.

Scenarios (default: all):
` + bench.Help() + `
The broker is the one at --url or AMQP_URL; bench creates queues with unique names
there and removes them. Without one, bench starts a container or a private node. It
starts PostgreSQL and Redis from the installed programs, and skips their baselines
if they are not installed. Run it on an otherwise idle machine; otherwise the
figures mean little.

The exit code is 0 even if targets are missed, because they depend on the machine.`,
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
	f.BoolVar(&o.Quick, "quick", false, "make everything small, to check in a few minutes that it works; the figures mean nothing")
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
		return fmt.Errorf("--strategy: bench compares all strategies; omit the flag")
	}
	cfg, err := a.Load(nil)
	if err != nil {
		return err
	}
	if a.Given("queue-type") {
		o.QueueTypes = []topology.QueueType{cfg.Delay.QueueType}
	}
	o.URL = string(cmp.Or(append([]config.URL{cfg.Broker.URL}, cfg.Broker.URLs...)...))
	o.Log = func(line string) { a.Notef("%s", line) }
	o.Progress = func(what string, total int) (func(int), func()) {
		bar := a.Progress(total, what)
		return bar.Add, bar.Clear
	}
	result, err := bench.Run(c.Context(), o)
	if result == nil || len(result.Scenarios) == 0 {
		return err
	}
	// Report the measurements up to an error or an interrupt, because they took a long time.
	if report != "" {
		if werr := result.WriteReport(report); werr != nil {
			return errors.Join(err, fmt.Errorf("--report: %w", werr))
		}
		a.Notef("report: %s", strings.TrimSuffix(report, "/")+"/result.md")
	}
	if a.JSON {
		return errors.Join(err, a.PrintJSON(result))
	}
	return errors.Join(err, result.Write(a.Stdout, bench.Text))
}
