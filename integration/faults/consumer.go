package faults

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/idempotency"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// EnvConsumer turns a program that calls ConsumerMain into a consumer process. Its value is the configuration.
const EnvConsumer = "RABBITDELAY_FAULTS_CONSUMER"

// consumerConfig is the configuration of a consumer process.
type consumerConfig struct {
	URLs         []string `json:"urls"`
	Strategy     Strategy `json:"strategy"`
	Driver       string   `json:"driver"`
	DSN          string   `json:"dsn"`
	Number       int      `json:"number"`       // number of the process
	Serializable bool     `json:"serializable"` // use serializable transactions
	Seen         string   `json:"seen"`         // file to which every handler run is appended
	Log          string   `json:"log"`          // file, or empty
	Tasks        bool     `json:"tasks"`        // also consume tasks
}

// Orders that a consumer process accepts on its standard input.
const (
	orderDieBeforeCommit = "die-before-commit"
	orderDieBeforeAck    = "die-before-ack"
	orderPanic           = "panic"
	orderOverrun         = "overrun"
	orderPause           = "pause"
	orderStop            = "stop"
)

const (
	concurrency  = 8
	drainTimeout = 300 * time.Millisecond
	overrunFor   = 6 * time.Second
	tallySlots   = 8
	pauses       = 25 // more than the number of returns that RabbitMQ 4 allows
)

// ConsumerMain runs a consumer process if EnvConsumer is set, and reports whether it did. Call it before anything else
// in main or TestMain, with the database drivers imported.
func ConsumerMain() (ran bool, err error) {
	raw := os.Getenv(EnvConsumer)
	if raw == "" {
		return false, nil
	}
	var cfg consumerConfig
	if err := json.Unmarshal([]byte(raw), &cfg); err != nil {
		return true, err
	}
	return true, consume(cfg)
}

// consumer is the state of a consumer process.
type consumer struct {
	cfg  consumerConfig
	seen *os.File
	// Orders set these, and the next message resets them.
	dieBeforeCommit, dieBeforeAck, overrun atomic.Bool
	panics                                 atomic.Int32
	client                                 atomic.Pointer[amqpx.Client] // nil until it is connected
}

func consume(cfg consumerConfig) error {
	c := &consumer{cfg: cfg}
	var err error
	// Write every line with a separate system call, so that no line is lost when the process dies.
	if c.seen, err = os.OpenFile(cfg.Seen, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	defer c.seen.Close()
	db, err := sql.Open(cfg.Driver, cfg.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(2*concurrency + 2)
	db.SetMaxIdleConns(2*concurrency + 2)

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go c.obey(stop)

	conf, err := clientConfig(cfg.URLs, cfg.Strategy)
	if err != nil {
		return err
	}
	conf.ConnectionName = fmt.Sprintf("faults consumer %d", cfg.Number)
	if conf.Logger, err = logger(cfg.Log); err != nil {
		return err
	}
	client, err := open(ctx, conf)
	if err != nil {
		return err
	}
	c.client.Store(client)
	consume := c.consuming(ctx, stop, client)
	tasks := func() error { return nil }
	if cfg.Tasks {
		tasks = consume(taskQueue, schedule.Handler(db, func(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
			// schedule.Handler has checked the version. A message that was sent before its task was rescheduled does not count
			// as a handler run.
			if err := c.note(d); err != nil {
				return err
			}
			return c.effect(ctx, tx, d)
		}))
	}
	var opts []idempotency.HandlerOption
	if cfg.Serializable {
		opts = append(opts, idempotency.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelSerializable}))
	}
	handle := idempotency.Handler(db, c.effect, opts...)
	messages := consume(destination, func(ctx context.Context, d *amqpx.Delivery) error {
		if err := c.note(d); err != nil {
			return err
		}
		return handle(ctx, d)
	})
	err = errors.Join(messages(), tasks())
	if errors.Is(err, amqpx.ErrDrainTimeout) {
		return nil // expected after an overrun order; the handler ends with the process
	}
	return errors.Join(err, client.Close(context.WithoutCancel(ctx)))
}

// consuming returns a function that starts to consume a queue. That function returns a function that waits for its end.
func (c *consumer) consuming(ctx context.Context, stop func(), client *amqpx.Client) func(string, amqpx.Handler) func() error {
	return func(queue string, handle amqpx.Handler) func() error {
		ended := make(chan error, 1)
		go func() {
			defer stop() // when one consumer ends, stop the other
			ended <- client.Consume(ctx, queue, func(ctx context.Context, d *amqpx.Delivery) error {
				// A database that does not answer must not block a handler forever.
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				if err := handle(ctx, d); err != nil {
					return err
				}
				if c.dieBeforeAck.CompareAndSwap(true, false) {
					die()
				}
				return nil
			}, amqpx.WithConcurrency(concurrency), amqpx.WithDrainTimeout(drainTimeout),
				amqpx.WithRetry(topology.Retry{MaxAttempts: 100_000, Backoff: 200 * time.Millisecond, MaxBackoff: 2 * time.Second}))
		}()
		return func() error { return <-ended }
	}
}

// open connects and retries until a broker accepts the connection, because the process may start while the broker is
// down.
func open(ctx context.Context, conf amqpx.Config) (*amqpx.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		client, err := amqpx.Open(ctx, conf)
		if err == nil || ctx.Err() != nil {
			return client, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// obey executes orders until the end of standard input, which the exit of the parent process closes.
func (c *consumer) obey(stop func()) {
	defer stop()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		switch lines.Text() {
		case orderDieBeforeCommit:
			c.dieBeforeCommit.Store(true)
		case orderDieBeforeAck:
			c.dieBeforeAck.Store(true)
		case orderPanic:
			c.panics.Store(3)
		case orderOverrun:
			c.overrun.Store(true)
		case orderPause:
			go c.giveBack()
		case orderStop:
			return
		}
	}
}

// giveBack pauses the consumers repeatedly, because some pauses begin before a consumer has started on its deliveries.
func (c *consumer) giveBack() {
	client := c.client.Load()
	if client == nil {
		return
	}
	for round := range pauses {
		for _, queue := range []string{destination, taskQueue} {
			_ = client.PauseConsuming(queue, amqpx.PauseHandBack) // the queue name is valid
		}
		<-time.After(20 * time.Millisecond)
		client.ResumeConsuming(destination)
		client.ResumeConsuming(taskQueue)
		<-time.After(time.Duration(round%5) * 25 * time.Millisecond)
	}
}

// note records that the handler runs.
func (c *consumer) note(d *amqpx.Delivery) error {
	now := time.Now().UnixMicro()
	_, err := fmt.Fprintf(c.seen, "%s %d %d %d\n", d.ID, d.Attempt, d.DueAt.UnixMicro(), now)
	return err
}

// effect is the work of the workload. It inserts a row for the message and updates a tally for which transactions
// compete.
func (c *consumer) effect(ctx context.Context, tx *sql.Tx, d *amqpx.Delivery) error {
	now := time.Now().UnixMicro()
	for _, q := range []string{
		fmt.Sprintf("INSERT INTO effects (message_id, at_us, process) VALUES ('%s', %d, %d)", safe(d.ID), now, c.cfg.Number),
		fmt.Sprintf("UPDATE tally SET n = n + 1 WHERE slot = %d", now%tallySlots),
	} {
		if _, err := tx.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	if c.panics.Load() > 0 && c.panics.Add(-1) >= 0 {
		panic("on purpose")
	}
	if c.overrun.CompareAndSwap(true, false) {
		<-time.After(overrunFor) // ignores its context
	}
	if c.dieBeforeCommit.CompareAndSwap(true, false) {
		die()
	}
	return nil
}

// safe removes all characters from an ID that the workload's IDs do not contain. This is necessary because the
// statements have no placeholders, which differ between dialects.
func safe(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' {
			return r
		}
		return '_'
	}, id)
}

// die kills the process as kill -9 does.
func die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

func logger(path string) (*zap.Logger, error) {
	if path == "" {
		return zap.NewNop(), nil
	}
	cfg := zap.NewDevelopmentConfig()
	cfg.OutputPaths = []string{path}
	return cfg.Build(zap.AddStacktrace(zap.DPanicLevel))
}
