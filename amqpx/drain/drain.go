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
	"github.com/rabbitdelay/rabbitdelay/plugin/table"
)

// DefaultMargin is Config.Margin if that is 0.
const DefaultMargin = time.Minute

// Shell evaluates an Erlang expression on the node whose table is drained, as "rabbitmqctl eval" does with its
// standard input, and returns its output while it runs. Close waits for its end and returns its error.
type Shell func(ctx context.Context, expression string) (io.ReadCloser, error)

// Config is for one run.
type Config struct {
	Client *amqpx.Client // sends; its strategy must not be the plugin; not used with DryRun
	Shell  Shell
	// OtherBroker: Shell reaches another broker than the client's, to which the messages move. Without it that is
	// an error.
	OtherBroker bool
	// State is the file that says, after a kill, what was sent and not yet deleted. It is made if there is none,
	// and kept.
	State string
	// Vhost is the client's virtual host.
	Vhost string
	// User is the client's: the broker takes no other user-id from it.
	User string
	// Prefix is that of rabbitdelay's objects.
	Prefix string
	// Exchanges are the names of those to drain; empty for all of the virtual host.
	Exchanges []string
	// Margin is how far ahead a message must be due to be taken; the plugin delivers what is due sooner. Sending
	// and deleting some 2,000 messages must take less. Default DefaultMargin; at least 10 s.
	Margin time.Duration
	// LeaveOut names what messages may lose: "expiration", "user-id", or a header that inspect.NotCarried names;
	// with "priority" one above 4 becomes 4 and is sent where quorum delay queues would refuse it. Without it
	// such messages stay.
	LeaveOut []string
	// DryRun is asked what would be refused; nothing is sent, deleted or noted in State. Nil to move the
	// messages.
	DryRun *inspect.Rehearsal
	// Progress is called now and then; nil for nobody.
	Progress func(Report)

	portion int // rows; portionRows unless a test says otherwise
}

// Report counts what became of the messages. Found is the sum of Sent, Soon and the counts of Refused.
type Report struct {
	Node  string `json:"node"`
	Found int64  `json:"found"`
	// Sent are confirmed; with DryRun those that would be sent.
	Sent int64 `json:"sent"`
	// Exchanges are those of the messages that are Sent, in the order of the first.
	Exchanges []Moved `json:"exchanges"`
	// Soon are due within the margin: left for the plugin to deliver.
	Soon int64 `json:"already_due"`
	// Refused stay in the plugin.
	Refused []Refused `json:"refused"`
	// Deleted are gone from the plugin's table, those of an earlier run included.
	Deleted int64 `json:"deleted"`
	// Resumed were sent by an earlier run that was killed before it deleted them.
	Resumed int64 `json:"resumed"`
	// Twice were sent and then delivered by the plugin too, before they could be deleted: they come twice, under
	// one id if they had one.
	Twice int64 `json:"twice"`
	// Other are of other virtual hosts, or of exchanges that were not chosen.
	Other int64 `json:"other"`
	// Elsewhere is how many other nodes have tables of their own.
	Elsewhere int `json:"other_tables"`
}

// Moved counts the messages of an exchange that are sent.
type Moved struct {
	Exchange string `json:"exchange"`
	Sent     int64  `json:"sent"`
}

// Refused counts the messages of an exchange that stay for one reason.
type Refused struct {
	Exchange string `json:"exchange"`
	Why      string `json:"why"`
	Count    int64  `json:"count"`
}

// ErrNoTable is the error for a node without the plugin's table.
var ErrNoTable = errors.New("the node has no table of the plugin: the plugin is not enabled there, or messages wait on other nodes")

// ErrIncomplete is the error for a shell that ended before it had printed everything.
var ErrIncomplete = errors.New("the answer of the broker's shell ends too soon")

// ErrOtherBroker is the error if Shell and Client reach different brokers, or if the connection of Lock has
// ended.
var ErrOtherBroker = errors.New("the node is of another broker than the connection that holds the lock")

// ErrSameBroker is the error if Config.OtherBroker is set although Shell and Client reach the same broker, or if
// somebody drains that broker into itself.
var ErrSameBroker = errors.New("the node is of the connection's own broker, or its plugin is being drained")

// Look counts the rows of the table, of all virtual hosts, without reading them. It needs the Lock, whose queue
// shows whether the node belongs to the client's broker.
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

// Run moves what waits, while the caller holds the Lock. It reads the table by due instant, sends a portion,
// records each message in State once the broker has confirmed it, and deletes the portion's rows from the table
// before it continues.
//
// After an error, and after a kill, nothing is lost: call it again with the same State. Messages that were sent
// and not recorded, a few hundred at most, are sent again under their ids. A message without an id gets one that
// is the same in each run.
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
	if r.rep.Resumed = int64(len(r.journal.pending)); r.rep.Resumed > 0 { // sent by an earlier run, and not deleted
		_, err = r.delete(ctx)
	}
	if err == nil {
		err = r.walk(ctx)
	}
	return r.rep, errors.Join(err, r.journal.close())
}

const minMargin = 10 * time.Second

// ErrLocked is the error if another connection drains the plugin. The connection of a machine that has gone
// counts until the broker misses its heartbeats.
var ErrLocked = errors.New("another process drains the plugin of this virtual host")

// The broker releases the lock of a killed process when it has found its connection closed.
const (
	lockWait  = 15 * time.Second
	lockPause = 250 * time.Millisecond
)

// Lock prevents others from draining until the connection ends: two at once would send everything twice. It needs
// permission to configure the queue PREFIX.plugin-drain, and waits up to 15 s for a lock that is held before it
// fails with ErrLocked.
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
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare(name, false, true, true, false, amqp.Table{"x-queue-type": "classic"})
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.ResourceLocked {
		return ErrLocked
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}
	return nil
}
