package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// command measures the named workloads, or all of them.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, "usage: compare [FLAGS] [WORKLOAD...]\n\nMeasures rabbitdelay against TTL queues by hand, River, asynq, Redis, a polled\ntable and the x-delayed-message plugin, on servers that it starts. Without arguments\nit runs all workloads, which takes about 35 minutes:\n\n")
		for _, w := range workloads() {
			fmt.Fprintf(stderr, "  %-10s  %s\n", w.name, w.about)
		}
		fmt.Fprintln(stderr)
		flags.PrintDefaults()
	}
	quick := flags.Bool("quick", false, "reduce all sizes, to check that everything works; the figures are meaningless")
	dir := flags.String("report", "", "folder with the latest result of each workload, to which this run adds its results")
	var given sizes
	flags.IntVar(&given.Repeats, "repeats", 0, "repeats of steady, instant and schedule (default 3)")
	flags.IntVar(&given.Rate, "rate", 0, "tasks per second of steady and pools (default 400)")
	flags.IntVar(&given.Seconds, "seconds", 0, "how long tasks are scheduled in steady, starved and pools (default 8)")
	flags.IntVar(&given.Starved, "starved", 0, "tasks per second of starved (default 100)")
	flags.IntVar(&given.Instant, "instant", 0, "tasks that are due at the same time (default 5000)")
	flags.IntVar(&given.Restart, "restart", 0, "tasks that wait while a server restarts (default 1000)")
	flags.IntVar(&given.Pending, "pending", 0, "tasks of the backlog (default 1000000)")
	flags.Func("contender", "`name` of a contender to run; may be repeated (default all)", func(name string) error {
		given.only = append(given.only, name)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, name := range flags.Args() {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("workload %q; expected %s", name, strings.Join(names(), ", "))
		}
	}
	s := defaults(*quick)
	flags.Visit(func(f *flag.Flag) {
		for name, to := range map[string]struct{ value, of *int }{
			"repeats": {&given.Repeats, &s.Repeats}, "rate": {&given.Rate, &s.Rate}, "seconds": {&given.Seconds, &s.Seconds}, "starved": {&given.Starved, &s.Starved},
			"instant": {&given.Instant, &s.Instant}, "restart": {&given.Restart, &s.Restart}, "pending": {&given.Pending, &s.Pending},
		} {
			if f.Name == name {
				*to.of = *to.value
			}
		}
	})
	s.only = given.only
	if err := s.validate(); err != nil {
		return err
	}
	all, err := runAll(ctx, s, flags.Args(), *dir, func(line string) { fmt.Fprintln(stderr, line) })
	if err == nil && *dir != "" {
		if all, err = load(*dir); err == nil {
			err = all.publish(*dir)
		}
	}
	return errors.Join(err, all.write(stdout, false))
}

// runAll starts the servers and measures the workloads. It saves each result immediately, because a workload takes a
// long time.
func runAll(ctx context.Context, s sizes, only []string, dir string, log func(line string)) (all report, err error) {
	e, err := start(ctx, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	for _, w := range workloads() {
		if len(only) > 0 && !slices.Contains(only, w.name) {
			continue
		}
		one, err := measure(ctx, e, w, s, log)
		all = append(all, one)
		if dir != "" {
			err = errors.Join(err, one.save(dir))
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}
