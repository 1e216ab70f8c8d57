package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// receiver is one run of consume.
type receiver struct {
	a           *app
	queue       string
	count       int64
	timeout     duration
	concurrency int
	prefetch    int

	late   lateness
	bar    progress
	enough context.CancelFunc

	mu       sync.Mutex
	received int64
	before   int64 // acknowledged on connections that were lost
	tags     tags
	printErr error
}

// received is the result of consume.
type received struct {
	Received int64       `json:"received"`
	Early    int         `json:"early"`
	Lateness percentiles `json:"lateness_ms"`
}

// receivedMessage is the line of one message.
type receivedMessage struct {
	ID       string `json:"id"`
	Due      string `json:"due,omitempty"`
	Received string `json:"received"`
	Lateness *int64 `json:"lateness_ms,omitempty"`
	Attempt  int    `json:"attempt"`
	Body     string `json:"body,omitempty"`
	Binary   []byte `json:"body_base64,omitempty"` // instead of body when that is not UTF-8
}

func (a *app) consumeCommand() *cobra.Command {
	r := &receiver{a: a}
	c := &cobra.Command{
		Use:   "consume",
		Short: "Take messages out of a queue, print them and say how late they are",
		Long: `consume takes messages out of a queue for good: what it has printed is gone from
the broker, and whatever consumes the queue in production does not see it. It is
for queues of one's own, to try and to measure. To look at what waits for somebody
else, use the management page's "Get messages" with "Nack message requeue true".

It prints a line for each message, unless --quiet, and one with the result at the
end, with --json {"received":N,"early":N,"lateness_ms":{"p50":N,"p99":N,"max":N}}.
Early are messages that came before their due instant by this process's clock.
A message is acknowledged after its line was written; when that fails, a full disk
or a broken pipe, the message goes back to the queue and consume ends with an
error. It takes exactly --count messages and touches no others. Give --count instead
of "| head": what consume has read by the time that head ends is gone unseen.

It refuses the queues of the delay strategies, such as delay.bucket.1m.

It declares no layout. A queue that does not exist is created as a destination is,
and said so.

Exit code: 0 when --count messages came, or after Ctrl-C without --count; 3 when
the timeout or Ctrl-C was first; 1 for errors.`,
		Example: `  rabbitdelay send --queue try.me --delay 5s --body hello
  rabbitdelay consume --queue try.me --count 1 --timeout 1m
  rabbitdelay consume --queue try.load --count 20000 --timeout 2m --quiet --json`,
		Args: noArgs,
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
	f.IntVar(&r.concurrency, "concurrency", amqpx.DefaultConcurrency, "messages handled at once")
	f.IntVar(&r.prefetch, "prefetch", 0, "messages that the broker hands out ahead; default 4 times the concurrency")
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
	case r.concurrency < 1 || r.concurrency > maxPrefetch:
		return fmt.Errorf("--concurrency: %d; expected 1 to %d", r.concurrency, maxPrefetch)
	case r.a.flags("prefetch") && (r.prefetch < 1 || r.prefetch > maxPrefetch):
		return fmt.Errorf("--prefetch: %d; expected 1 to %d", r.prefetch, maxPrefetch)
	case !r.a.quiet && closed(r.a.stdout):
		return errors.New("standard output is closed, so that nobody would see the messages; --quiet takes them without printing")
	}
	if r.prefetch == 0 {
		r.prefetch = min(4*r.concurrency, maxPrefetch)
	}
	if r.count > 0 {
		r.prefetch = int(min(int64(r.prefetch), r.count))
	}
	return nil
}

// maxPrefetch is AMQP's.
const maxPrefetch = 65535

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

func (r *receiver) run(ctx context.Context) error {
	signal.Ignore(syscall.SIGPIPE) // a broken pipe is an error of the write then, and the message goes back
	c, err := r.a.load(nil, nil)
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
	if r.a.quiet || r.a.json || !isTerminal(r.a.stdout) {
		r.bar = r.a.progress(int(r.count), "receiving")
	}
	err = r.consume(ctx, d)
	r.bar.clear()
	if serr := r.summary(); err == nil && r.printErr == nil {
		err = serr
	}
	if err != nil || r.printErr != nil {
		return errors.Join(err, r.printErr)
	}
	if ctx.Err() != nil && (r.count > 0 && r.received < r.count || r.count == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded)) {
		return exit(exitTimeout)
	}
	return nil
}

// notReserved refuses the queues of the delay strategies: what is taken out of one
// never reaches those that it is for.
func notReserved(prefix, queue string) error {
	switch {
	case queue == topology.ParkedQueue(prefix):
		return fmt.Errorf("--queue: %q holds messages whose queue was missing, and consume would throw them away; look at them on the management page, and send them again as docs/guarantees.md says", queue)
	case topology.Reserved(prefix, queue):
		return fmt.Errorf("--queue: %q belongs to the delay strategies with prefix %q, and what consume takes out of it never arrives; give the queue that the messages are for, and look at this one on the management page", queue, prefix)
	}
	return nil
}

// ensureQueue creates the queue, and the dead-letter queue of a destination, where
// it does not exist. A dead-letter queue gets none of its own.
func (r *receiver) ensureQueue(d *doorway) error {
	there, err := d.hasQueue(r.queue)
	if there || err != nil {
		return err
	}
	listed := slices.ContainsFunc(d.c.Topology.Destinations, func(x topology.Destination) bool { return x.Queue == r.queue || x.DeadLetterQueue() == r.queue })
	if declare := d.c.Broker.Declare; declare == amqpx.DeclareNothing || declare == amqpx.DeclareListed && !listed {
		return fmt.Errorf("the queue %q does not exist, and may not be created (broker.declare: %s)", r.queue, declare)
	}
	queues := d.c.Destination(r.queue).Queues(d.c.Delay.QueueType)
	if isDeadLetterQueue(d.c, r.queue) {
		queues = []topology.Queue{{Name: r.queue, Type: d.c.Delay.QueueType}}
	}
	ch, err := d.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }()
	var names []string
	for _, q := range queues {
		if there, err := d.hasQueue(q.Name); err != nil {
			return err
		} else if there {
			continue
		}
		if _, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Table()); err != nil {
			return fmt.Errorf("declare queue %s: %w", q.Name, err)
		}
		names = append(names, q.Name)
	}
	slices.Reverse(names) // the one that was asked for first
	r.a.created(d.c, names)
	return nil
}

func isDeadLetterQueue(c *config.Config, queue string) bool {
	return strings.HasSuffix(queue, ".dead") || slices.ContainsFunc(c.Topology.Destinations, func(x topology.Destination) bool {
		return !x.ToExchange() && x.DeadLetterQueue() == queue
	})
}

// consume ends with the context, when enough messages came, or with an error that
// another connection would not mend.
func (r *receiver) consume(ctx context.Context, d *doorway) error {
	for {
		err := r.session(ctx, d.conn)
		lost := err != nil && d.conn.IsClosed()
		d.close()
		switch {
		case ctx.Err() != nil, r.printErr != nil:
			return nil //nolint:nilerr // what ended it is no error of the session's, and printErr is told by the caller
		case !lost:
			return err
		}
		r.forget()
		if d = r.again(ctx, d.c, err); d == nil {
			return nil
		}
	}
}

// again connects until it can, or the context ends: nil.
func (r *receiver) again(ctx context.Context, c *config.Config, err error) *doorway {
	const pause = time.Second
	log := r.a.logger()
	for {
		log.Warn("connection lost; connecting again", zap.Error(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		var d *doorway
		if d, err = r.a.knock(ctx, c); err == nil {
			return d
		}
	}
}

// forget leaves out of the count what was not acknowledged on a connection that
// is lost: it comes again.
func (r *receiver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before += int64(r.tags.acked)
	r.received, r.tags = r.before, tags{}
}

// session consumes from one connection. At its end what was printed is
// acknowledged, and what was not goes back with the channel.
func (r *receiver) session(ctx context.Context, conn *amqp.Connection) error {
	const tag = "rabbitdelay"
	ctx, r.enough = context.WithCancel(ctx)
	defer r.enough()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	gone := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Qos(r.prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.Consume(r.queue, tag, false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume %s: %w", r.queue, err)
	}
	r.tags = tags{ch: ch, printed: map[uint64]bool{}}
	var workers sync.WaitGroup
	for range r.concurrency {
		workers.Go(func() { r.work(ctx, deliveries) })
	}
	r.acknowledge(&workers)
	if ctx.Err() == nil { // the broker ended it
		select {
		case e := <-gone:
			return fmt.Errorf("consume %s: %w", r.queue, errors.Join(amqp.ErrClosed, asError(e)))
		default:
			return fmt.Errorf("consume %s: the broker cancelled the consumer; was the queue deleted?", r.queue)
		}
	}
	// A broker that has stopped reading does not keep the command.
	defer time.AfterFunc(ackTimeout, func() { _ = conn.CloseDeadline(time.Now()) }).Stop()
	if err := ch.Cancel(tag, false); err != nil { // nothing more is handed out for what is acknowledged now
		return err
	}
	if err := r.tags.ackAll(); err != nil {
		return err
	}
	return ch.Close() // after the acknowledgements, which the connection's end might overtake
}

// acknowledge does so now and then while the workers print.
func (r *receiver) acknowledge(workers *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { workers.Wait(); close(done) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			r.mu.Lock()
			r.ack()
			r.mu.Unlock()
		}
	}
}

// ack acknowledges what was printed. With a count the last ones wait for the end,
// so that the broker hands out no more than are wanted: on RabbitMQ 4.0 to 4.2 one
// that is handed out and given back is a step nearer to its queue's delivery limit.
func (r *receiver) ack() {
	limit := r.tags.through
	if r.count > 0 {
		limit = min(limit, uint64(max(r.count-r.before-int64(r.prefetch), 0)))
	}
	_ = r.tags.ackThrough(limit) // otherwise the connection is lost, and they come again
}

// tags are the deliveries of a channel that were printed. They are acknowledged
// many at a time: of single acknowledgements a quorum queue's broker has 32 under
// way, and forgets the others when the channel is closed.
type tags struct {
	ch      *amqp.Channel
	through uint64          // all up to this one were printed
	printed map[uint64]bool // and these after it
	acked   uint64
}

func (t *tags) add(tag uint64) {
	t.printed[tag] = true
	for t.printed[t.through+1] {
		t.through++
		delete(t.printed, t.through)
	}
}

func (t *tags) ackThrough(tag uint64) error {
	if tag <= t.acked {
		return nil
	}
	t.acked = tag
	return t.ch.Ack(tag, true)
}

// ackAll is for the end. What workers printed beside one that was not printed are
// a few.
func (t *tags) ackAll() error {
	if err := t.ackThrough(t.through); err != nil {
		return err
	}
	for tag := range t.printed {
		if err := t.ch.Ack(tag, false); err != nil {
			return err
		}
	}
	return nil
}

// ackTimeout bounds the last acknowledgements.
const ackTimeout = 5 * time.Second

// asError keeps a nil a nil.
func asError(e *amqp.Error) error {
	if e == nil {
		return nil
	}
	return e
}

func (r *receiver) work(ctx context.Context, deliveries <-chan amqp.Delivery) {
	for {
		select {
		case <-ctx.Done():
			return
		case d, ok := <-deliveries:
			if !ok {
				return
			}
			r.take(ctx, d)
		}
	}
}

// maxHold bounds how long a message that is early by this process's clock waits:
// the broker's clock may differ by a millisecond or two.
const maxHold = 20 * time.Millisecond

// take prints a message, and acknowledges it after that.
func (r *receiver) take(ctx context.Context, d amqp.Delivery) {
	due, hasDue := integer(d.Headers[amqpx.HeaderDue])
	if wait := time.Until(time.UnixMilli(due)); hasDue && wait > 0 {
		select {
		case <-time.After(min(wait, maxHold)):
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		return // it goes back
	}
	at := time.Now()
	if !r.a.quiet {
		if err := r.print(d, at); err != nil {
			r.printErr = fmt.Errorf("printing message %s, which goes back to the queue: %w", d.MessageId, err)
			r.enough()
			return
		}
	}
	if hasDue {
		r.late.add(at.UnixMilli(), due)
	}
	r.bar.add(1)
	r.received++
	if r.received == r.count {
		r.enough()
	}
	r.tags.add(d.DeliveryTag)
	if r.tags.through-r.tags.acked >= uint64(max(r.prefetch/4, 1)) {
		r.ack()
	}
}

// integer reads a header of any width.
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

// print writes a message's line to standard output, which is not buffered.
func (r *receiver) print(d amqp.Delivery, at time.Time) error {
	m := receivedMessage{ID: d.MessageId, Received: milli(at), Attempt: 1}
	if due, ok := integer(d.Headers[amqpx.HeaderDue]); ok {
		late := at.UnixMilli() - due
		m.Due, m.Lateness = milli(time.UnixMilli(due)), &late
	}
	if n, ok := integer(d.Headers[amqpx.HeaderAttempt]); ok {
		m.Attempt = int(n)
	}
	m.Body, m.Binary = textOrBinary(d.Body)
	if r.a.json {
		return r.a.printJSON(m)
	}
	late := ""
	if m.Lateness != nil {
		late = fmt.Sprintf("%+d ms", *m.Lateness)
	}
	body := m.Body
	if m.Binary != nil {
		body = fmt.Sprintf("(%d bytes)", len(m.Binary))
	}
	attempt := ""
	if m.Attempt > 1 {
		attempt = fmt.Sprintf("attempt %d  ", m.Attempt)
	}
	_, err := fmt.Fprintf(r.a.stdout, "%s  %8s  %s  %s%q\n", m.Received, late, m.ID, attempt, body)
	return err
}

// summary prints the last line.
func (r *receiver) summary() error {
	p, early := r.late.summary()
	out := received{Received: r.received, Early: early, Lateness: p}
	if r.a.json {
		return r.a.printJSON(out)
	}
	_, err := fmt.Fprintf(r.a.stdout, "%d received, %d early, lateness p50 %d ms, p99 %d ms, max %d ms\n", out.Received, early, p.P50, p.P99, p.Max)
	return err
}

// milli is an instant as the lines have it.
func milli(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
