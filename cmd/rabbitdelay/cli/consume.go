package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// receiver is one run of consume.
type receiver struct {
	a           *app
	queue       string
	count       int64
	timeout     duration
	concurrency int
	prefetch    int

	begun    atomic.Int64
	received atomic.Int64
	late     lateness
	bar      progress
	enough   context.CancelFunc

	out      sync.Mutex
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
		Short: "Receive messages and say how late they are",
		Long: `consume receives messages from a queue and acknowledges them. It prints a line for
each, unless --quiet, and one with the result at the end, with --json
{"received":N,"early":N,"lateness_ms":{"p50":N,"p99":N,"max":N}}. Early are
messages that came before their due instant by this process's clock. It takes
exactly --count messages; others stay in the queue.

Exit code: 0 when --count messages came, or after Ctrl-C without --count; 3 when
the timeout or Ctrl-C was first.`,
		Example: `  rabbitdelay consume --queue orders.expire
  rabbitdelay consume --queue load --count 20000 --timeout 2m --quiet --json`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case r.queue == "":
				return errors.New("no queue; give --queue")
			case r.count < 0:
				return fmt.Errorf("--count: %d; expected 0 (no end) or more", r.count)
			case r.timeout < 0:
				return fmt.Errorf("--timeout: %s; expected 0 (none) or more", r.timeout.String())
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

func (r *receiver) run(ctx context.Context) error {
	c, err := r.a.load(nil, nil)
	if err != nil {
		return err
	}
	client, err := r.a.open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the consumer has returned
	if r.timeout > 0 {
		// It is for the messages; connecting and declaring have their own.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.timeout))
		defer cancel()
	}
	if r.a.quiet || r.a.json || !isTerminal(r.a.stdout) {
		r.bar = r.a.progress(int(r.count), "receiving")
	}
	err = r.consume(ctx, client)
	r.bar.clear()
	if serr := r.summary(); serr != nil {
		err = serr
	}
	if err != nil {
		return errors.Join(err, r.printErr)
	}
	if r.printErr != nil {
		return r.printErr
	}
	if ctx.Err() != nil && (r.count > 0 && r.received.Load() < r.count || r.count == 0 && errors.Is(ctx.Err(), context.DeadlineExceeded)) {
		return exit(exitTimeout)
	}
	return nil
}

// consume ends with the context, or when enough messages came.
func (r *receiver) consume(ctx context.Context, client *amqpx.Client) error {
	ctx, r.enough = context.WithCancel(ctx)
	defer r.enough()
	// The handlers only print, so there is nothing to wait for; those over the
	// count wait for the end, to give their messages back.
	opts := []amqpx.ConsumeOption{amqpx.Concurrency(r.concurrency), amqpx.DrainTimeout(0)}
	if r.prefetch != 0 {
		opts = append(opts, amqpx.Prefetch(r.prefetch))
	}
	return client.Consume(ctx, r.queue, r.handle, opts...)
}

var errNotWanted = errors.New("more than --count; goes back to the queue")

func (r *receiver) handle(ctx context.Context, d *amqpx.Delivery) error {
	at := time.Now()
	if n := r.begun.Add(1); r.count > 0 && n > r.count {
		<-ctx.Done()
		return errNotWanted
	}
	if !d.DueAt.IsZero() {
		r.late.add(at.UnixMilli(), d.DueAt.UnixMilli())
	}
	if !r.a.quiet {
		if err := r.print(d, at); err != nil {
			r.out.Lock()
			r.printErr = err
			r.out.Unlock()
			r.enough()
		}
	}
	r.bar.add(1)
	if r.received.Add(1) == r.count {
		r.enough()
	}
	return nil
}

func (r *receiver) print(d *amqpx.Delivery, at time.Time) error {
	m := receivedMessage{ID: d.ID, Received: milli(at), Attempt: d.Attempt}
	if !d.DueAt.IsZero() {
		late := at.UnixMilli() - d.DueAt.UnixMilli()
		m.Due, m.Lateness = milli(d.DueAt), &late
	}
	if utf8.Valid(d.Body) {
		m.Body = string(d.Body)
	} else {
		m.Binary = d.Body
	}
	r.out.Lock()
	defer r.out.Unlock()
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
	out := received{Received: r.received.Load(), Early: early, Lateness: p}
	if r.a.json {
		return r.a.printJSON(out)
	}
	r.a.printf("%d received, %d early, lateness p50 %d ms, p99 %d ms, max %d ms\n", out.Received, early, p.P50, p.P99, p.Max)
	return nil
}

// milli is an instant as the lines have it.
func milli(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
