package lab

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/lateness"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// order is what is planned for one order, and what was done.
type order struct {
	id        string
	message   string        // id of the message that lets it expire
	placeAt   time.Duration // after the start
	expireIn  time.Duration
	declared  bool          // expireIn is one of the declared delays, and sent as such
	payIn     time.Duration // 0: nobody pays
	resend    bool          // the message is sent twice, under one id
	copyAtDue bool          // and once more straight to the queue when it is due

	placed atomic.Bool // and its message confirmed
	due    int64       // epoch ms; valid once placed
}

// demo is one run.
type demo struct {
	a      *app
	run    string
	queue  string
	store  *store
	orders []*order
	posts  *posts // nil without their story

	clients [3]*amqpx.Client // producer, consumer, consumer
	raw     *amqp.Connection

	late       lateness.Record
	seen       sync.Map // message id -> struct{}, for the lateness of first arrivals
	duplicates atomic.Int64
	handled    atomic.Int64
	skipped    atomic.Int64 // as duplicates
	paid       atomic.Int64
	placed     atomic.Int64
}

// headerCopy marks what was put into the queue behind the SDK's back.
const headerCopy = "demo-copy"

// plan draws everything that is left to chance.
func (d *demo) plan(delay config.Delay) {
	for i := range d.orders {
		o := &order{
			id:       fmt.Sprintf("%s-%d", d.run, i+1),
			placeAt:  demoCreation * time.Duration(i) / time.Duration(len(d.orders)),
			expireIn: demoMinDelay + rand.N(demoMaxDelay-demoMinDelay),
		}
		// ttl knows declared delays only; auto takes it for those.
		if delay.Strategy == config.StrategyTTL || delay.Strategy == config.StrategyAuto && i%2 == 0 {
			o.expireIn, o.declared = delay.TTL.Delays[rand.IntN(len(delay.TTL.Delays))], true
		}
		o.message = "expire-" + o.id
		if rand.IntN(2) == 0 {
			o.payIn = time.Duration(float64(o.expireIn) * (0.1 + 0.8*rand.Float64()))
		}
		o.resend = rand.IntN(5) == 0
		o.copyAtDue = rand.IntN(5) == 0
		d.orders[i] = o
	}
}

// play places and pays orders while two consumers cancel them, and returns when
// every message and every duplicate was handled, or is overdue.
func (d *demo) play(ctx context.Context) error {
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 2)
	for _, client := range d.clients[1:] {
		go func() { ended <- client.Consume(consuming, d.queue, d.handler(), amqpx.WithConcurrency(8)) }()
	}
	err := d.produce(ctx)
	if err == nil {
		err = d.await(ctx)
	}
	stop()
	return errors.Join(err, <-ended, <-ended)
}

// handler cancels an order if it is still unpaid and due.
func (d *demo) handler() amqpx.Handler {
	handle := idempotency.Handler(d.store.db,
		func(ctx context.Context, tx *sql.Tx, m *amqpx.Delivery) error {
			return d.store.cancel(ctx, tx, string(m.Body), m.ID, time.Now())
		},
		idempotency.OnlyIf(d.store.stillUnpaid, func(m *amqpx.Delivery) []any {
			return []any{string(m.Body), m.DueAt.UnixMilli()}
		}),
		idempotency.WithDialect(d.store.dialect),
		idempotency.OnSkip(func(_ context.Context, _ *amqpx.Delivery, r idempotency.SkipReason) {
			if r == idempotency.SkipDuplicate {
				d.skipped.Add(1)
			}
		}),
	)
	return func(ctx context.Context, m *amqpx.Delivery) error {
		now := time.Now()
		if _, copied := m.Headers[headerCopy]; !copied && m.Attempt == 1 {
			if _, again := d.seen.LoadOrStore(m.ID, struct{}{}); !again {
				d.late.Add(now, m.DueAt)
			}
		}
		err := handle(ctx, m)
		if err == nil {
			d.handled.Add(1)
		}
		return err
	}
}

// demoSends bounds how many orders are being placed at once.
const demoSends = 64

// produce places the orders at their times, with what follows on each.
func (d *demo) produce(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bar := d.a.Progress(len(d.orders), "placing orders")
	defer bar.Clear()
	start := time.Now()
	slots := make(chan struct{}, demoSends)
	var sending, later sync.WaitGroup
	for _, o := range d.orders {
		if !pauseUntil(ctx, start.Add(o.placeAt)) {
			break
		}
		slots <- struct{}{}
		sending.Go(func() {
			defer func() { <-slots }()
			if err := d.place(ctx, o); err != nil {
				cancel(err)
				return
			}
			d.show(bar)
			later.Go(func() { d.follow(ctx, cancel, o) })
		})
	}
	sending.Wait()
	follows := make(chan struct{})
	go func() { later.Wait(); close(follows) }()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-follows:
			return context.Cause(ctx)
		case <-tick.C:
			d.show(bar)
		}
	}
}

// show draws how many orders are settled.
func (d *demo) show(bar term.Progress) {
	placed, paid := d.placed.Load(), d.paid.Load()
	done := min(d.handled.Load()-d.skipped.Load(), int64(len(d.orders)))
	what := fmt.Sprintf("orders: %d placed, %d paid, expired", placed, paid)
	if d.posts != nil {
		what = fmt.Sprintf("%d posts; %d orders, %d paid, expired", d.posts.published(), placed, paid)
	}
	bar.Set(int(done), what)
}

// place stores an order and sends the message that lets it expire.
func (d *demo) place(ctx context.Context, o *order) error {
	// The due instant is the message's and the row's.
	due := time.UnixMilli(time.Now().Add(o.expireIn).UnixMilli())
	o.due = due.UnixMilli()
	if err := d.store.place(ctx, o); err != nil {
		return err
	}
	m := amqpx.Message{ID: o.message, Queue: d.queue, DeliverAt: due, Body: []byte(o.id), ContentType: "text/plain"}
	if o.declared { // exact from now on, and due a moment after the row
		m.DeliverAt, m.Delay = time.Time{}, o.expireIn
	}
	if err := d.clients[0].Send(ctx, m); err != nil {
		return fmt.Errorf("order %s: %w", o.id, err)
	}
	o.placed.Store(true)
	d.placed.Add(1)
	if !o.resend {
		return nil
	}
	if err := d.clients[0].Send(ctx, m); err != nil {
		return fmt.Errorf("order %s again: %w", o.id, err)
	}
	d.duplicates.Add(1)
	return nil
}

// follow pays the order, and puts a copy of its message into the queue when it
// is due.
func (d *demo) follow(ctx context.Context, cancel context.CancelCauseFunc, o *order) {
	due := time.UnixMilli(o.due)
	if o.payIn > 0 && pauseUntil(ctx, due.Add(o.payIn-o.expireIn)) {
		paid, err := d.store.pay(ctx, o.id, time.Now())
		if err != nil {
			cancel(fmt.Errorf("paying order %s: %w", o.id, err))
			return
		}
		if paid {
			d.paid.Add(1)
		}
	}
	if o.copyAtDue && pauseUntil(ctx, due) {
		if err := d.publishCopy(ctx, o); err != nil {
			cancel(fmt.Errorf("copying the message of order %s: %w", o.id, err))
			return
		}
		d.duplicates.Add(1)
	}
	pauseUntil(ctx, due)
}

// publishCopy puts the message into the queue as any other publisher could.
func (d *demo) publishCopy(ctx context.Context, o *order) error {
	return publishRaw(ctx, d.raw, d.queue, amqp.Publishing{
		MessageId: o.message, DeliveryMode: amqp.Persistent, Body: []byte(o.id),
		Headers: amqp.Table{amqpx.HeaderDue: o.due, headerCopy: true},
	})
}

func publishRaw(ctx context.Context, conn *amqp.Connection, queue string, m amqp.Publishing) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }() // the confirm has come
	if err := ch.Confirm(false); err != nil {
		return err
	}
	confirm, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, m)
	if err != nil {
		return err
	}
	_, err = confirm.WaitContext(ctx)
	return err
}

// await waits until every message was handled, duplicates included, or none can
// be expected any more.
func (d *demo) await(ctx context.Context) error {
	bar := d.a.Progress(len(d.orders), "")
	defer bar.Clear()
	overdue := time.NewTimer(demoGrace)
	defer overdue.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		d.show(bar)
		if d.handled.Load() >= int64(len(d.orders))+d.duplicates.Load() {
			return nil
		}
		select {
		case <-tick.C:
		case <-overdue.C:
			return nil // the ledger says what is missing
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pauseUntil tells whether the instant came before the end of the context.
func pauseUntil(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
