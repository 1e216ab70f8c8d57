package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/asjson"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/lateness"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

type receiver struct {
	*app.App

	queue    string
	count    int64 // 0 means no limit
	timeout  app.Duration
	prefetch int

	received int64
	late     lateness.Record
	noted    bool // a message was early and the note about it was printed
	bar      term.Progress
}

const (
	defaultPrefetch = 64    // enough to keep a terminal busy, with few messages to return at the end
	maxPrefetch     = 65535 // AMQP's maximum
	consumerTag     = "rabbitdelay"
	ackPause        = 100 * time.Millisecond // how long a printed message may wait to be acknowledged together with later ones
	// maxHold is the tolerance for differences between the clocks: consume holds a message until it is due if it
	// arrives early by at most its lead plus maxHold. The broker's clock may differ by a millisecond or two.
	maxHold = 20 * time.Millisecond
	// ackTimeout is the timeout of the last acknowledgements, in case the broker has stopped reading from the
	// connection.
	ackTimeout = 5 * time.Second
)

// ConsumeCommand returns the consume command, which takes messages out of a queue for good and shows how late they are.
func ConsumeCommand(a *app.App) *cobra.Command {
	r := &receiver{App: a}
	c := &cobra.Command{
		Use:   "consume",
		Short: "Take messages out of a queue and show how late they are",
		Long: `Take messages out of a queue for good, print them, and show how late they are.
Use it only for test queues. To inspect another queue, use "rabbitdelay peek".`,
		Example: `  rabbitdelay send --queue try.me --delay 5s --body hello
  rabbitdelay consume --queue try.me --count 1 --timeout 1m
  rabbitdelay consume --queue try.load --count 20000 --timeout 2m --quiet --json`,
	}
	f := c.Flags()
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch { // an explicit 0, such as from a script, is an error and must not empty the queue
		case f.Changed("count") && r.count < 1:
			return fmt.Errorf("--count: %d; expected 1 or more; omit --count to consume without a limit", r.count)
		case f.Changed("timeout") && r.timeout <= 0:
			return fmt.Errorf("--timeout: %s; expected more than 0; omit --timeout to wait without a limit", r.timeout.String())
		}
		return r.receive(c.Context())
	}
	f.StringVar(&r.queue, "queue", "", "queue to consume from")
	f.Int64Var(&r.count, "count", 0, "stop after this many messages; default: never")
	f.Var(&r.timeout, "timeout", "stop this long after the connection is ready; default: never")
	f.IntVar(&r.prefetch, "prefetch", defaultPrefetch, "how many unacknowledged messages the broker may deliver, 1 to 65535")
	return c
}

func (r *receiver) check() error {
	switch {
	case r.queue == "":
		return errors.New("no queue was given; give --queue")
	case r.prefetch < 1 || r.prefetch > maxPrefetch:
		return fmt.Errorf("--prefetch: %d; expected 1 to %d", r.prefetch, maxPrefetch)
	case !r.Quiet && closed(r.Stdout):
		return errors.New("standard output is closed, so the messages would be lost without being shown; give --quiet to consume them without printing")
	}
	return nil
}

func (r *receiver) receive(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a broken pipe then fails the write, and the message returns to the queue
	c, err := r.Load(nil)
	if err != nil {
		return err
	}
	// A message that is consumed from a queue of the delay strategies never reaches its destination.
	switch prefix := c.Delay.Prefix; {
	case r.queue == topology.ParkedQueue(prefix):
		return fmt.Errorf("--queue: %q contains messages whose destination is missing, and consume would delete them; inspect them with rabbitdelay peek, and send them on with rabbitdelay requeue", r.queue)
	case naming.Reserved(prefix, r.queue):
		return fmt.Errorf("--queue: %q is a delay queue with prefix %q, and messages consumed from it would never reach their destination; give the destination queue (rabbitdelay status shows how many messages are in a delay queue)", r.queue, prefix)
	}
	d, err := knock(ctx, r.App, c)
	if err != nil {
		return err
	}
	if err := r.ensureQueue(d); err != nil {
		d.close()
		return err
	}
	if r.timeout > 0 {
		// The timeout is for receiving messages. Connecting and declaring have their own timeouts.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.timeout))
		defer cancel()
	}
	if r.Quiet || r.JSON || !term.Is(r.Stdout) {
		r.bar = r.Progress(int(r.count), "receiving")
	}
	err = r.consume(ctx, d)
	r.bar.Clear()
	if err == nil && r.received == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = r.silent(context.WithoutCancel(ctx), c)
	}
	perr := r.sum()
	if err := cmp.Or(err, perr); err != nil {
		return err
	}
	if ctx.Err() != nil && (r.count > 0 && r.received < r.count || r.count == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded)) {
		return program.Exit(app.ExitTimeout)
	}
	return nil
}

// silent returns an error if the queue does not answer, because then no message arrives although there may be some.
func (r *receiver) silent(ctx context.Context, c *config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, silentTimeout)
	defer cancel()
	found, err := live.Leaderless(ctx, c.Dial, []string{r.queue})
	if why, silent := found[r.queue]; err == nil && silent {
		return &live.UnavailableError{Queue: r.queue, Reason: why}
	}
	return nil // it answers, or the broker can no longer be reached
}

// silentTimeout limits the test of whether a queue without messages answers.
const silentTimeout = 10 * time.Second

// sum prints the result. The lateness is unknown if no message had a due time.
func (r *receiver) sum() error {
	if r.late.Len() == 0 {
		return r.Show(received{Received: r.received}, "%d received\n", r.received)
	}
	p, early := r.late.Summary()
	return r.Show(received{r.received, &early, &p}, "%d received, %d early, lateness p50 %d ms, p99 %d ms, max %d ms\n", r.received, early, p.P50, p.P99, p.Max)
}

// closed reports whether standard output was closed when the process started. In this case the Go runtime opens the
// null device instead, for both reading and writing.
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

type received struct {
	Received int64                 `json:"received"`
	Early    *int                  `json:"early"` // nil, like Lateness, if no message had a due time
	Lateness *lateness.Percentiles `json:"lateness_ms"`
}

type receivedMessage struct {
	ID       string `json:"id"`
	Due      string `json:"due,omitempty"`
	Received string `json:"received"`
	Lateness *int64 `json:"lateness_ms,omitempty"`
	Attempt  int    `json:"attempt"`
	Body     string `json:"body,omitempty"`
	Binary   string `json:"body_base64,omitempty"` // set instead of body if the body is not UTF-8
}

var errGoesBack = errors.New("it returns to the queue")

func (r *receiver) take(d amqp.Delivery) error {
	at := time.Now()
	if why, ok := d.Headers[naming.HeaderUnreadable].(string); ok {
		return fmt.Errorf("message %s cannot be decoded, and %w: %s; rabbitdelay peek shows the message, and rabbitdelay discard --reason %s removes it", d.MessageId, errGoesBack, why, inspect.ReasonUnreadable)
	}
	if !r.Quiet {
		if err := r.printDelivery(d, at); err != nil {
			return fmt.Errorf("message %s could not be printed, and %w: %w", d.MessageId, errGoesBack, err)
		}
	}
	if due, ok := dueSince(d, at); ok {
		r.late.Add(at, due)
		if by := due.Sub(at); by > maxHold && !r.noted { // more than the clocks may differ; the summary counts smaller values
			r.noted = true
			r.Notef("note: message %s arrived %s before its due time; another program published it to the queue, or this machine's clock is behind the broker's",
				shown.Line(d.MessageId), topology.FormatDuration(by.Truncate(time.Millisecond)))
		}
	}
	r.bar.Add(1)
	r.received++
	return nil
}

func dueOf(d amqp.Delivery) (time.Time, bool) {
	due, ok := integer(d.Headers[amqpx.HeaderDue])
	return time.UnixMilli(due), ok
}

// dueSince returns the time at which a message that arrived at the given time became due. A message that was sent
// without a delay became due when it was sent, or when it arrived if it has no timestamp.
func dueSince(d amqp.Delivery, at time.Time) (time.Time, bool) {
	due, ok := dueOf(d)
	switch {
	case !ok || due.UnixMilli() != 0:
		return due, ok
	case d.Timestamp.IsZero():
		return at, true
	}
	return d.Timestamp, true
}

func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	}
	return 0, false
}

// printDelivery writes a message's line to standard output, which is not buffered.
func (r *receiver) printDelivery(d amqp.Delivery, at time.Time) error {
	m := receivedMessage{ID: d.MessageId, Received: shown.Instant(at), Attempt: 1}
	if due, ok := dueSince(d, at); ok {
		late := at.UnixMilli() - due.UnixMilli()
		m.Due, m.Lateness = shown.Instant(due), &late
	}
	if n, ok := integer(d.Headers[amqpx.HeaderAttempt]); ok {
		m.Attempt = int(n)
	}
	m.Body, m.Binary = asjson.Text(d.Body)
	late := ""
	if m.Lateness != nil {
		late = fmt.Sprintf("%+d ms", *m.Lateness)
	}
	attempt := ""
	if m.Attempt > 1 {
		attempt = fmt.Sprintf("attempt %d  ", m.Attempt)
	}
	return r.Show(m, "%s  %8s  %s  %s%q\n", m.Received, late, shown.Line(m.ID), attempt, app.BodyText(d.Body))
}
