package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	table "github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/plugintable"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
)

// DefaultMargin is used if Config.Margin is 0.
const DefaultMargin = time.Minute

// Shell evaluates an Erlang expression on the node whose table is drained, as "rabbitmqctl eval" does with its standard
// input, and returns the output while it is being printed. Closing the output waits until the evaluation has finished,
// and returns its error.
type Shell func(ctx context.Context, expression string) (io.ReadCloser, error)

// Config configures one run.
type Config struct {
	Client *amqpx.Client // sends the messages; its strategy must not be the plugin; not used with DryRun
	Shell  Shell
	// OtherBroker means that Shell reaches a different broker than the client, to which the messages are moved. Without
	// it, that is an error.
	OtherBroker bool
	// State is the path of a file that records, in case of a kill, which messages were sent and are not yet deleted.
	// The file is created if it does not exist, and is not removed.
	State string
	// Vhost is the client's virtual host.
	Vhost string
	// User is the client's user. The broker accepts no other user-id from the client.
	User string
	// Prefix is the prefix of rabbitdelay's objects.
	Prefix string
	// Exchanges are the names of the exchanges to drain; empty for all exchanges in the virtual host.
	Exchanges []string
	// Margin is how far in the future a message must be due to be moved; the plugin delivers messages that are due
	// sooner. Sending and deleting about 2,000 messages must take less than the margin. The default is DefaultMargin;
	// the minimum is 10 s.
	Margin time.Duration
	// LeaveOut names the properties and headers that messages may lose: "expiration", "user-id", or a header that
	// inspect.UnsupportedProperties returns. With "priority", a priority above 4 is reduced to 4, because quorum delay
	// queues would otherwise refuse the message. Messages that would lose anything else are not moved.
	LeaveOut []string
	// DryRun, if it is not nil, reports for each message whether it would be refused. Nothing is then sent, deleted or
	// recorded in State.
	DryRun *inspect.Rehearsal
	// Progress is called after each batch, if it is not nil.
	Progress func(Report)

	portion int // rows in a batch; portionRows except in tests
}

// Report counts messages by their outcome. Found is the sum of Sent, Soon and the counts of Refused.
type Report struct {
	Node  string `json:"node"`
	Found int64  `json:"found"`
	// Sent counts messages that were confirmed or, with DryRun, that would be sent.
	Sent int64 `json:"sent"`
	// Exchanges counts the sent messages by exchange, in the order of each exchange's first message.
	Exchanges []Moved `json:"exchanges"`
	// Soon counts messages that are due within the margin and are left for the plugin to deliver.
	Soon int64 `json:"already_due"`
	// Refused counts messages that stay in the plugin.
	Refused []Refused `json:"refused"`
	// Deleted counts rows that were deleted from the plugin's table, including those of an earlier run.
	Deleted int64 `json:"deleted"`
	// Resumed counts messages that were sent by an earlier run that was killed before it deleted them.
	Resumed int64 `json:"resumed"`
	// Twice counts messages that were sent and then also delivered by the plugin before they could be deleted. They are
	// delivered twice, with the same id if they had one.
	Twice int64 `json:"twice"`
	// Other counts messages in other virtual hosts, and messages for exchanges that were not selected.
	Other int64 `json:"other"`
	// Elsewhere is how many other nodes have their own tables.
	Elsewhere int `json:"other_tables"`
}

// Moved counts the sent messages of an exchange.
type Moved struct {
	Exchange string `json:"exchange"`
	Sent     int64  `json:"sent"`
}

// Refused counts the messages of an exchange that stay for the same reason.
type Refused struct {
	Exchange string `json:"exchange"`
	Why      string `json:"why"`
	Count    int64  `json:"count"`
}

// ErrNoTable is returned for a node without the plugin's table.
var ErrNoTable = errors.New("the node has no table of the plugin; the plugin is not enabled on this node, or messages wait on other nodes")

// ErrIncomplete is returned if the shell exited before it had printed everything.
var ErrIncomplete = errors.New("the output of the broker's shell is incomplete")

// ErrOtherBroker is returned if Shell and Client reach different brokers, or if the connection that holds the Lock was
// closed.
var ErrOtherBroker = errors.New("the node belongs to a different broker than the connection that holds the lock")

// ErrSameBroker is returned if Config.OtherBroker is set although Shell and Client reach the same broker, or if another
// process drains that broker into itself.
var ErrSameBroker = errors.New("the node belongs to the same broker as the connection, or its plugin is already being drained")

// Look counts the rows of the table for all virtual hosts without reading them. It requires the Lock, because the
// Lock's queue shows whether the node belongs to the client's broker.
func Look(ctx context.Context, cfg Config) (table.Head, error) {
	var head table.Head
	err := each(ctx, cfg.Shell, table.Look(cfg.Vhost, lockQueue(cfg.Prefix)), func(l table.Line) error {
		if l.Head != nil {
			head = *l.Head
		}
		return nil
	})
	switch {
	case err != nil:
		return head, err
	case len(head.Node) == 0:
		return head, ErrIncomplete
	case !head.HasQueue && !cfg.OtherBroker:
		return head, fmt.Errorf("node %s: %w", head.Node, ErrOtherBroker)
	case head.HasQueue && cfg.OtherBroker:
		return head, fmt.Errorf("node %s: %w", head.Node, ErrSameBroker)
	case head.Rows < 0:
		return head, fmt.Errorf("node %s: %w", head.Node, ErrNoTable)
	}
	return head, nil
}

// Run moves the waiting messages while the caller holds the Lock. It reads the table in the order of due times, sends a
// batch, records each message in State after the broker has confirmed it, and deletes the rows of the batch from the
// table before it continues.
//
// After an error or a kill nothing is lost; call Run again with the same State. Messages that were sent but not
// recorded, a few hundred at most, are sent again with their ids. A message without an id gets one that is the same in
// each run.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if cfg.Margin == 0 {
		cfg.Margin = DefaultMargin
	}
	if cfg.portion == 0 {
		cfg.portion = portionRows
	}
	if cfg.Margin < minMargin {
		return Report{}, fmt.Errorf("margin: %v; expected at least %v", cfg.Margin, minMargin)
	}
	head, err := Look(ctx, cfg)
	if err != nil {
		return Report{}, err
	}
	r := &run{cfg: cfg, rep: Report{Node: string(head.Node), Elsewhere: head.Elsewhere, Exchanges: []Moved{}, Refused: []Refused{}}}
	if cfg.DryRun != nil {
		err := r.walk(ctx)
		return r.rep, err
	}
	if r.journal, err = openJournal(cfg.State, fmt.Sprintf("%q %q", head.Node, cfg.Vhost)); err != nil {
		return Report{}, err
	}
	if r.rep.Resumed = int64(len(r.journal.pending)); r.rep.Resumed > 0 { // sent by an earlier run, but not deleted
		_, err = r.delete(ctx)
	}
	if err == nil {
		err = r.walk(ctx)
	}
	return r.rep, errors.Join(err, r.journal.close())
}

const minMargin = 10 * time.Second

// ErrLocked is returned if another connection is draining the plugin. The connection of a machine that has disappeared
// counts until the broker misses its heartbeats.
var ErrLocked = errors.New("another process is already draining the plugin of this virtual host")

// Limits of the wait for the lock. The broker releases the lock of a killed process as soon as it notices that the
// connection is closed.
const (
	lockWait  = 15 * time.Second
	lockPause = 250 * time.Millisecond
)

// Lock prevents other processes from draining until the connection is closed, because two concurrent drains would send
// everything twice. The user needs permission to configure the queue PREFIX.plugin-drain. If the lock is held, Lock
// waits up to 15 s before it fails with ErrLocked.
func Lock(ctx context.Context, conn *amqp.Connection, prefix string) error {
	deadline := time.Now().Add(lockWait)
	tick := time.NewTicker(lockPause)
	defer tick.Stop()
	for {
		err := lockOnce(conn, lockQueue(prefix))
		if !errors.Is(err, ErrLocked) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func lockQueue(prefix string) string { return prefix + ".plugin-drain" }

func lockOnce(conn *amqp.Connection, name string) error {
	ch, err := channels.Open(conn)
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(name, false, true, true, false, amqp.Table{"x-queue-type": "classic"})
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.ResourceLocked {
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("locking %s: %w", name, err)
	}
	return nil
}
