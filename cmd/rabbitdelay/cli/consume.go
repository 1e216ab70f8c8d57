package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/cmd/lateness"
)

// receiver is one run of consume.
type receiver struct {
	a        *app
	queue    string
	count    int64 // 0: no end
	timeout  duration
	prefetch int

	received int64
	late     lateness.Record
	noted    bool // that a message was early
	bar      term.Progress
}

// defaultPrefetch keeps a terminal busy, and is little to give back.
const defaultPrefetch = 64

// maxPrefetch is AMQP's.
const maxPrefetch = 65535

func (a *app) consumeCommand() *cobra.Command {
	r := &receiver{a: a}
	c := &cobra.Command{
		Use:   "consume",
		Short: "Take messages out of a queue, print them and say how late they are",
		Long: `consume takes messages out of a queue for good: what it has printed is gone from
the broker, and whatever consumes the queue in production does not see it. It is
for queues of one's own, to try and to measure. To look at what waits for somebody
else, use "rabbitdelay peek".

It prints a line for each message, unless --quiet, and one with the result at the
end, with --json {"received":N,"early":N,"lateness_ms":{"p50":N,"p99":N,"max":N}}.
Early are messages that came before their due instant by this process's clock.
A message is acknowledged after its line was written; when that fails, a full disk
or a broken pipe, the message goes back to the queue and consume ends with an
error. It takes exactly --count messages and touches no others. Give --count instead
of "| head": what consume has read by the time that head ends is gone unseen.

It refuses the queues of the delay strategies, such as delay.bucket.1m, and
streams. A message whose headers no Go client can read goes back to the queue, and
consume ends with an error.

It declares no layout. If the queue does not exist, consume creates it as a
destination and says so.

Exit code: 0 when --count messages arrived, or after Ctrl-C without --count; 3
when the timeout or Ctrl-C came first; 1 for errors.`,
		Example: `  rabbitdelay send --queue try.me --delay 5s --body hello
  rabbitdelay consume --queue try.me --count 1 --timeout 1m
  rabbitdelay consume --queue try.load --count 20000 --timeout 2m --quiet --json`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := r.check(); err != nil {
				return err
			}
			return r.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&r.queue, "queue", "", "the queue")
	f.Int64Var(&r.count, "count", 0, "stop after this many messages; default no end")
	f.Var(&r.timeout, "timeout", "stop this long after the connection is ready; default never")
	f.IntVar(&r.prefetch, "prefetch", defaultPrefetch, "messages that the broker delivers ahead of acknowledgement, 1 to 65535")
	return c
}

func (r *receiver) check() error {
	switch {
	case r.queue == "":
		return errors.New("no queue; give --queue")
	case r.count < 0:
		return fmt.Errorf("--count: %d; expected 0 (no end) or more", r.count)
	case r.timeout < 0:
		return fmt.Errorf("--timeout: %s; expected 0 (none) or more", r.timeout.String())
	case r.prefetch < 1 || r.prefetch > maxPrefetch:
		return fmt.Errorf("--prefetch: %d; expected 1 to %d", r.prefetch, maxPrefetch)
	case !r.a.Quiet && closed(r.a.Stdout):
		return errors.New("standard output is closed, so the messages would be lost unseen; give --quiet to take them without printing")
	}
	return nil
}

func (r *receiver) run(ctx context.Context) error {
	signal.Ignore(syscall.SIGPIPE) // a broken pipe is an error of the write then, and the message goes back
	c, err := r.a.Load(nil, nil)
	if err != nil {
		return err
	}
	if err := notReserved(c.Delay.Prefix, r.queue); err != nil {
		return err
	}
	d, err := r.a.knock(ctx, c)
	if err != nil {
		return err
	}
	if err := r.ensureQueue(d); err != nil {
		d.close()
		return err
	}
	if r.timeout > 0 {
		// It is for the messages; connecting and declaring have their own.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.timeout))
		defer cancel()
	}
	if r.a.Quiet || r.a.JSON || !term.Is(r.a.Stdout) {
		r.bar = r.a.Progress(int(r.count), "receiving")
	}
	err = r.consume(ctx, d)
	r.bar.Clear()
	if serr := r.printSummary(); err == nil {
		err = serr
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil && (r.count > 0 && r.received < r.count || r.count == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded)) {
		return program.Exit(exitTimeout)
	}
	return nil
}

// closed tells whether standard output was closed when the process began. The Go
// runtime opens the null device in its place, for reading too.
func closed(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	null, err := os.Stat(os.DevNull)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	if err != nil {
		return true
	}
	if !os.SameFile(null, info) {
		return false
	}
	_, err = f.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}
