package simulate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// process is a simulated process of the system. It has a client and a store, and runs a relay, consumers or both. A
// killed process is replaced by a new one.
type process struct {
	w               *world
	name            string
	relays, handles bool
	now             func() time.Time // its wall clock

	db     *sql.DB
	link   *link
	client *amqpx.Client
	store  *schedule.Store

	ctx     context.Context // cancelled when the process shuts down
	stop    context.CancelFunc
	ended   sync.WaitGroup
	stopped func() // stops the consumers; nil while there are none
	errs    []error

	mu      sync.Mutex
	wires   map[*wire]bool
	stalled bool
	killed  bool
}

// wire is a connection to the broker that can stop passing data without an error.
type wire struct {
	net.Conn

	p *process
}

// dark reports whether the connection has stopped passing data.
func (x *wire) dark() bool {
	x.p.mu.Lock()
	defer x.p.mu.Unlock()
	return !x.p.wires[x]
}

func (x *wire) Write(b []byte) (int, error) {
	if x.dark() {
		return len(b), nil
	}
	return x.Conn.Write(b)
}

func (x *wire) Read(b []byte) (int, error) {
	for {
		if n, err := x.Conn.Read(b); err != nil || !x.dark() {
			return n, err
		}
	}
}

// dial connects to the broker.
func (p *process) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	p.mu.Lock()
	killed, stalled := p.killed, p.stalled
	p.mu.Unlock()
	if stalled {
		<-ctx.Done()
	}
	if killed || stalled {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errGone}
	}
	c, err := p.w.srv.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	x := &wire{c, p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wires[x] = true
	return x, nil
}

// stall stops the process's connections from passing data, and prevents new ones, until undo is called.
func (p *process) stall() (undo func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = true
	for x := range p.wires {
		p.wires[x] = false
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stalled = false
	}
}

// start starts a process, and returns it when its client has connected.
func (w *world) start(n int) (*process, error) {
	p := &process{w: w, name: fmt.Sprintf("process %d", n), wires: map[*wire]bool{}}
	p.now = func() time.Time { return time.Now().Add(time.Duration(w.clocks[n].Load())) }
	p.relays, p.handles = w.sc.roles(n)
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.db, p.link = w.db.open()
	strategy := w.sc.strategy
	if w.changed[n] {
		strategy = w.sc.changed
	}
	s, err := strategy()
	if err != nil {
		return nil, err
	}
	opening, cancel := context.WithTimeout(p.ctx, 10*time.Minute)
	defer cancel()
	p.client, err = amqpx.Open(opening, amqpx.Config{URL: w.srv.URL(), Dial: p.dial, Strategy: s, Lead: w.sc.Lead, ConnectionName: p.name, Now: p.now})
	if err != nil {
		_ = p.db.Close()
		return nil, fmt.Errorf("%s: open: %w", p.name, err)
	}
	cfg := schedule.Config{Horizon: min(w.sc.Horizon, p.client.MaxDelay()), Now: p.now, DatabaseNow: w.dbNow, VirtualTime: true}
	if w.sc.Strategy == "ttl" {
		p.relays = false
		p.store, err = schedule.New(p.db, nil, cfg)
	} else {
		p.store, err = schedule.New(p.db, p.client, cfg)
	}
	if err != nil {
		return nil, err
	}
	if p.relays {
		p.run("relay", func() error { return p.store.Run(p.ctx) })
	}
	p.consume()
	return p, nil
}

// run runs a part of the process in a goroutine, and records its error.
func (p *process) run(what string, part func() error) {
	p.ended.Go(func() {
		if err := part(); err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.errs = append(p.errs, fmt.Errorf("%s: %s: %w", p.name, what, err))
		}
	})
}

// consume starts the process's consumers, if it has any.
func (p *process) consume() {
	if !p.handles || p.ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan struct{})
	p.mu.Lock()
	p.stopped = func() { cancel(); <-done }
	p.mu.Unlock()
	retry := topology.Retry{MaxAttempts: maxAttempts, Backoff: time.Second, Jitter: topology.NoJitter}
	var list []amqpx.Consumer
	for queue, h := range p.handlers() {
		opts := []amqpx.ConsumeOption{amqpx.WithRetry(retry), amqpx.WithMiddleware(p.noted), amqpx.WithDrainTimeout(10 * time.Second)}
		if p.w.sc.Own {
			opts = append(opts, amqpx.WithPrefetch(2))
		}
		list = append(list, amqpx.Consumer{Queue: queue, Handler: h, Options: opts})
	}
	p.run("consumers", func() error {
		defer close(done)
		for {
			err := p.client.ConsumeAll(ctx, list...)
			refused := p.w.sc.has("deny", "refuse logins")
			if ctx.Err() != nil && (refused || errors.Is(err, amqpx.ErrDrainTimeout)) {
				return nil // the consumers may have been stopped while the broker refused them
			}
			if ctx.Err() != nil || !refused {
				return err
			}
			select { // a refusal before the first message is permanent, so start again, as a supervisor would
			case <-after(10 * time.Second):
			case <-ctx.Done():
			}
		}
	})
}

// pause stops the consumers, if there are any, and starts them again after the duration d.
func (p *process) pause(d time.Duration) {
	p.mu.Lock()
	stop := p.stopped
	p.stopped = nil
	p.mu.Unlock()
	if stop != nil {
		stop()
		<-after(d)
		p.consume()
	}
}

// handlers returns the handlers of all queues.
func (p *process) handlers() map[string]amqpx.Handler {
	h := map[string]amqpx.Handler{}
	for _, q := range []string{plainQueue, "msg.plain"} {
		h[q] = func(ctx context.Context, d *amqpx.Delivery) error {
			r, err := p.work(ctx, d)
			if err == nil {
				p.w.took(r)
			}
			return err
		}
	}
	effect := func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
		r, err := p.work(ctx, d)
		if err != nil {
			return err
		}
		return insert(ctx, tx, r)
	}
	for _, q := range []string{idemQueue, "msg.idem"} {
		h[q] = idempotency.Handler(p.db, effect, idempotency.WithGroup(p.w.sc.Group))
	}
	for _, q := range []string{taskQueue, "ev.a", "ev.b"} {
		h[q] = schedule.Handler(p.db, effect, schedule.WithGroup(p.w.sc.Group), schedule.WithNow(p.now), schedule.WithDatabaseNow(p.w.dbNow))
	}
	h[leaseQueue] = schedule.LeaseHandler(p.db, func(ctx context.Context, d *amqpx.Delivery, key string) (schedule.Func, error) {
		p.w.keyed(d, key)
		r, err := p.work(ctx, d)
		return func(ctx context.Context, tx *sql.Tx, _ *amqpx.Delivery) error { return insert(ctx, tx, r) }, err
	}, schedule.WithLease(10*time.Second), schedule.WithNow(p.now), schedule.WithDatabaseNow(p.w.dbNow))
	return h
}

// insert records an effect in the database.
func insert(ctx context.Context, tx *sql.Tx, r *run) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects (run) VALUES (?)", r.call)
	return err
}

// noted wraps a handler so that its runs record when the outcome of their delivery is known.
func (p *process) noted(next amqpx.Handler) amqpx.Handler {
	return func(ctx context.Context, d *amqpx.Delivery) error {
		runs := &[]*run{}
		defer func() { p.w.over(*runs) }()
		return next(context.WithValue(ctx, noting{}, runs), d)
	}
}

type noting struct{}

// work is the common part of all handlers. It takes time, and fails as the item requires.
func (p *process) work(ctx context.Context, d *amqpx.Delivery) (*run, error) {
	r, i, failed := p.w.began(p, d)
	if runs, ok := ctx.Value(noting{}).(*[]*run); ok {
		*runs = append(*runs, r)
	}
	defer p.w.ended(r)
	select {
	case <-after(i.Slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.link.dead:
		return nil, errGone
	}
	switch {
	case i.How == rejects:
		return nil, amqpx.Reject(errors.New("rejected by the scenario"))
	case failed && i.How == snoozes:
		return nil, amqpx.Snooze(nap)
	case failed && i.How == panics:
		panic("by the scenario")
	case failed:
		return nil, errors.New("failed by the scenario")
	}
	return r, nil
}

// kill ends a process abruptly. Its goroutines are cleaned up without further effects.
func (p *process) kill() {
	p.mu.Lock()
	p.killed = true
	for x := range p.wires {
		_ = x.Conn.Close()
	}
	p.mu.Unlock()
	p.link.kill()
	p.stop()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	p.w.background(func() {
		_ = p.client.Close(gone)
		p.ended.Wait()
		_ = p.db.Close()
	})
}

// close shuts a process down gracefully.
func (p *process) close() error {
	p.stop()
	p.ended.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(append(p.errs, p.client.Close(ctx), p.db.Close())...)
}
