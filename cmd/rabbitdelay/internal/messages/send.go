package messages

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

type sender struct {
	*app.App

	message     amqpx.Message
	body        string
	headers     []string
	delay       app.Duration
	at          app.Instant
	tolerance   app.Duration
	spread      app.Duration
	timeout     app.Duration
	count       int
	concurrency int
	yes         bool

	confirmed atomic.Int64
	attempted atomic.Int64
	failures  failures
}

type sent struct {
	Sent      int64   `json:"sent"`
	Confirmed int64   `json:"confirmed"`
	Unknown   int64   `json:"unknown"` // messages that the broker may have accepted without confirming them
	Seconds   float64 `json:"seconds"`
	Strategy  string  `json:"strategy"`
}

// sendBatch is the number of messages in one call to SendBatch.
const sendBatch = 256

// SendCommand returns the send command, which sends messages with a delay.
func SendCommand(a *app.App) *cobra.Command {
	s := &sender{App: a}
	c := &cobra.Command{
		Use:   "send",
		Short: "Send messages with a delay",
		Long: `Send messages with a delay, and wait until the broker has confirmed them. It
creates missing delay queues and destination queues.`,
		Example: `  rabbitdelay send --queue orders.expire --delay 30m --body '{"order":42}'
  rabbitdelay send --exchange events --routing-key post.publish \
    --at 2026-12-24T08:00:00Z --body @post.json
  rabbitdelay send --queue load --count 20000 --delay 5s --spread 30s --body x`,
		RunE: func(c *cobra.Command, _ []string) error { return s.send(c.Context()) },
	}
	f := c.Flags()
	f.StringVar(&s.message.Queue, "queue", "", "destination queue")
	f.StringVar(&s.message.Exchange, "exchange", "", "destination exchange, instead of --queue")
	f.StringVar(&s.message.RoutingKey, "routing-key", "", "routing key for --exchange")
	f.Var(&s.delay, "delay", "delay, such as 1500ms, 30m or 7d")
	f.Var(&s.at, "at", "due time instead of --delay, such as 2026-01-31T08:00:00Z")
	f.Var(&s.spread, "spread", "choose each delay at random from [delay, delay+spread]")
	f.Var(&s.tolerance, "tolerance", "how much later a message may arrive if that saves hops on the broker")
	f.StringVar(&s.body, "body", "", "the body; @file reads a file, - reads standard input")
	f.StringVar(&s.message.ContentType, "content-type", "", "content type of the body")
	f.StringArrayVar(&s.headers, "header", nil, "set the header `name=value`; repeatable")
	f.IntVar(&s.count, "count", 1, "number of messages")
	f.StringVar(&s.message.ID, "id", "", "message id; with --count N, id-1 to id-N; default: a new UUIDv7 for each")
	f.Var(&s.timeout, "timeout", "give up after this time; default: broker.send_timeout for each batch of 256")
	f.IntVar(&s.concurrency, "concurrency", 4, "batches sent at the same time")
	f.BoolVarP(&s.yes, "yes", "y", false, "declare delay queues without asking, even if the broker has another layout")
	return c
}

// check validates flags in combination, and parses those that need it.
func (s *sender) check() error {
	switch {
	case s.message.Queue == "" && s.message.Exchange == "":
		return errors.New("no destination was given; give --queue, or --exchange and --routing-key")
	case s.message.Queue != "" && (s.message.Exchange != "" || s.message.RoutingKey != ""):
		return errors.New("expected only one destination: --queue, or --exchange with --routing-key")
	case s.count < 1:
		return fmt.Errorf("--count: %d; expected 1 or more", s.count)
	case s.concurrency < 1 || s.concurrency > 1024:
		return fmt.Errorf("--concurrency: %d; expected 1 to 1024", s.concurrency)
	case s.delay < 0:
		return fmt.Errorf("--delay: %v; expected 0 or more", s.delay.String())
	case s.tolerance < 0:
		return fmt.Errorf("--tolerance: %v; expected 0 or more", s.tolerance.String())
	case s.spread < 0:
		return fmt.Errorf("--spread: %v; expected 0 or more", s.spread.String())
	case s.delay > math.MaxInt64-s.spread:
		return errors.New("--delay and --spread: their sum exceeds the longest possible duration")
	case s.timeout < 0:
		return fmt.Errorf("--timeout: %v; expected 0 or more", s.timeout.String())
	case s.timeout == 0 && s.Given("timeout"):
		return errors.New("--timeout: 0s; expected more than 0; omit --timeout for the default")
	}
	if err := s.Exclusive("delay", "at"); err != nil {
		return err
	}
	headers, err := app.ParseHeaders(s.headers)
	if err != nil {
		return err
	}
	if len(headers) > 0 {
		s.message.Headers = amqp.Table{}
		for name, value := range headers {
			s.message.Headers[name] = value
		}
	}
	s.message.Tolerance = time.Duration(s.tolerance)
	s.message.Body, err = app.ReadBody(s.body, s.Stdin)
	return err
}

// next returns the message with index i, starting at 0.
func (s *sender) next(i int) amqpx.Message {
	m := s.message
	if m.ID != "" && s.count > 1 {
		m.ID = fmt.Sprintf("%s-%d", m.ID, i+1)
	}
	var extra time.Duration
	if ms := time.Duration(s.spread).Milliseconds(); ms > 0 {
		extra = time.Duration(rand.Int64N(ms+1)) * time.Millisecond
	}
	if at := time.Time(s.at); !at.IsZero() {
		m.DeliverAt = at.Add(extra)
	} else {
		m.Delay = time.Duration(s.delay) + extra
	}
	return m
}

func (s *sender) send(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	c, err := s.Load(nil)
	if err != nil {
		return err
	}
	if s.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(s.timeout))
		defer cancel()
	}
	client, missing, err := s.open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }() // all sends have returned
	bar := s.Progress(s.count, "sending")
	start := time.Now()
	err = s.sendAll(ctx, client, bar)
	took := time.Since(start)
	bar.Clear()
	if s.confirmed.Load() > 0 {
		created(s.App, c, missing)
	}

	out := sent{Sent: s.attempted.Load(), Confirmed: s.confirmed.Load(), Unknown: s.failures.unknown(), Seconds: app.Seconds(took), Strategy: client.Strategy().Name()}
	perr := s.Show(out, "%d of %s confirmed in %.2f s (%.0f/s), strategy %s, %s\n",
		out.Confirmed, shown.Count(s.count, "message", "messages"), took.Seconds(), float64(out.Confirmed)/max(took.Seconds(), 1e-6), out.Strategy, client.BrokerVersion())
	if perr != nil {
		return perr
	}
	if err == nil && out.Confirmed != int64(s.count) {
		err = fmt.Errorf("%d of %s not confirmed", int64(s.count)-out.Confirmed, shown.Count(s.count, "message was", "messages were"))
	}
	return err
}

// open connects to the broker. Before that, it announces the queues and exchanges that sending would declare and, if
// they may be unintended, asks for confirmation. It also returns the queues of the destination that do not exist yet.
func (s *sender) open(ctx context.Context, c *config.Config) (*amqpx.Client, []string, error) {
	strategy, err := c.Strategy(ctx, s.Logger())
	if err != nil {
		return nil, nil, err
	}
	d, err := knock(ctx, s.App, c)
	if err != nil {
		return nil, nil, err
	}
	defer d.close()
	if err := d.layout(strategy, s.yes); err != nil {
		return nil, nil, err
	}
	missing, err := d.missing(topology.Destination{Queue: s.message.Queue, Exchange: s.message.Exchange, RoutingKey: s.message.RoutingKey})
	if err != nil {
		return nil, nil, err
	}
	client, err := s.Open(ctx, c, strategy)
	return client, missing, err
}

// sendAll sends several batches concurrently. After the first error, it does not start any more batches.
func (s *sender) sendAll(ctx context.Context, client *amqpx.Client, bar term.Progress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	s.failures.total = s.count
	var wg sync.WaitGroup
	for range min(s.concurrency, (s.count+sendBatch-1)/sendBatch) {
		wg.Go(func() {
			for ctx.Err() == nil {
				from := int(next.Add(sendBatch)) - sendBatch
				if from >= s.count {
					return
				}
				batch := make([]amqpx.Message, min(sendBatch, s.count-from))
				for i := range batch {
					batch[i] = s.next(from + i)
				}
				err := client.SendBatch(ctx, batch)
				s.account(len(batch), err)
				bar.Add(len(batch))
				s.failures.add(from, len(batch), err)
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.failures.err(); err != nil {
		return err
	}
	return ctx.Err()
}

// failures collects the errors of concurrent batches, so that the messages of all batches are counted.
type failures struct {
	total int // messages that were to be sent

	mu     sync.Mutex
	tried  int // messages of the batches that have ended
	failed map[int]*amqpx.SendError
	first  int   // the index of the first failed message of the batch that failed first
	other  error // an error that is not about single messages
}

// add adds the result of a batch that begins with the message at index from.
func (f *failures) add(from, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried += n
	batch, ok := errors.AsType[*amqpx.BatchError](err)
	switch {
	case ok:
		if f.failed == nil {
			f.failed = map[int]*amqpx.SendError{}
			f.first = from + slices.Min(slices.Collect(maps.Keys(batch.Failed)))
		}
		for i, e := range batch.Failed {
			f.failed[from+i] = e
		}
	case f.other == nil:
		f.other = err
	}
}

func (f *failures) unknown() (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.failed {
		if e.Unknown {
			n++
		}
	}
	return n
}

// err returns one error for all failed batches, or nil if all batches succeeded.
func (f *failures) err() error {
	unknown := f.unknown()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.failed) == 0 {
		return f.other
	}
	var untried string
	if f.tried < f.total {
		untried = fmt.Sprintf(", and %d were not tried", f.total-f.tried)
	}
	err := fmt.Errorf("%d of %d messages failed (%d with unknown outcome)%s; the first failure (index %d): %w",
		len(f.failed), f.total, unknown, untried, f.first, f.failed[f.first])
	if f.other != nil {
		return fmt.Errorf("%w; %w", f.other, err)
	}
	return err
}

func (s *sender) account(n int, err error) {
	batch, partial := errors.AsType[*amqpx.BatchError](err)
	switch {
	case err == nil:
		s.attempted.Add(int64(n))
		s.confirmed.Add(int64(n))
	case partial:
		for _, f := range batch.Failed {
			if f.Tries == 0 {
				n--
			}
		}
		s.attempted.Add(int64(n))
		s.confirmed.Add(int64(batch.Total - len(batch.Failed)))
	}
	// Any other error means that a message is invalid and nothing was sent, so there is nothing to count.
}
