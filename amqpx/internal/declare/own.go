package declare

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/wire"
	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/wait"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// ownBindings manages additional bindings of destinations, which have an argument that is unique to this client. On
// brokers for which live.LateBindings reports true, the broker may report a binding as existing while another client is
// still creating it. A binding with a unique argument is created only by this client, so once it exists, the broker
// routes by it. The plain binding is complete long before the client's own binding is removed.
type ownBindings struct {
	c  *Declarer
	id string

	mu      sync.Mutex
	until   map[string]ownBinding // by ownKey
	sweeper bool                  // a goroutine is waiting to remove the bindings in until
}

type ownBinding struct {
	topology.Binding
	until time.Time
}

// ownStays is how long a client keeps its own binding.
const ownStays = 30 * time.Second

var clients atomic.Int64

func newOwnBindings(c *Declarer) *ownBindings {
	host, _ := os.Hostname()
	space, _ := os.Readlink("/proc/self/ns/pid") // containers may share host names and process ids
	id := fmt.Sprintf("%s/%s/%d/%d", host, space, os.Getpid(), clients.Add(1))
	return &ownBindings{c: c, id: id, until: map[string]ownBinding{}}
}

// of returns this client's own variant of a binding. No other client uses the same argument. The argument usually stays
// the same if the process is restarted in the same place, so that a binding left behind by a killed process is reused.
// After an attempt without an answer, the next one uses a different argument, because the broker may still be creating
// the first binding.
func (o *ownBindings) of(conn *amqp.Connection, b topology.Binding, try int) topology.Binding {
	from, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		from = conn.LocalAddr().String()
	}
	sum := sha256.Sum256([]byte(o.id + "/" + from))
	args := amqp.Table{argument.Binder: fmt.Sprintf("%s-%d", base64.RawURLEncoding.EncodeToString(sum[:12]), try)}
	maps.Copy(args, b.Arguments)
	b.Arguments = args
	return b
}

// keep schedules the removal of a binding. It is called before the binding is declared.
func (o *ownBindings) keep(b topology.Binding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.until[ownKey(b)] = ownBinding{b, time.Now().Add(ownStays)}
	if !o.sweeper {
		o.sweeper = o.c.conns.begin(o.withdraw)
	}
}

func ownKey(b topology.Binding) string {
	return strings.Join([]string{b.Exchange, b.Queue, b.RoutingKey, fmt.Sprint(b.Arguments[argument.Binder])}, "\x00")
}

// withdraw removes bindings when they expire, until there are none.
func (o *ownBindings) withdraw(ctx context.Context) {
	more := func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.sweeper = len(o.until) > 0
		return o.sweeper
	}
	for more() {
		if wait.For(ctx, ownStays/2) != nil {
			return
		}
		if err := o.takeAway(ctx, time.Now()); err != nil && ctx.Err() == nil {
			o.c.log.Debug("could not remove this client's own bindings; trying again", zap.Error(err))
		}
	}
}

// takeAway removes the bindings that expire at the deadline or earlier.
func (o *ownBindings) takeAway(ctx context.Context, deadline time.Time) error {
	o.mu.Lock()
	var due []ownBinding
	for _, b := range o.until {
		if !b.until.After(deadline) {
			due = append(due, b)
		}
	}
	o.mu.Unlock()
	if len(due) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	sess, err := o.c.cfg.Publishing(ctx)
	if err != nil {
		return err
	}
	return o.c.Do(ctx, sess, func(conn *amqp.Connection) error {
		s := &wire.Channel{Conn: conn}
		defer s.Close()
		for _, b := range due {
			err := s.Do(func(ch *amqp.Channel) error { return ch.QueueUnbind(b.Queue, b.RoutingKey, b.Exchange, b.Arguments) })
			if err != nil && saysNothing(err) {
				return err
			}
			o.mu.Lock()                                                      // forget the binding even if the queue no longer exists
			if key := ownKey(b.Binding); o.until[key].until.Equal(b.until) { // not declared again in the meantime
				delete(o.until, key)
			}
			o.mu.Unlock()
		}
		return nil
	})
}

// Unbind removes this client's own bindings if the broker answers within wire.CloseWait. Call it before Close, while
// there is a publishing connection.
func (c *Declarer) Unbind() {
	if _, connected := c.cfg.Current(); !connected {
		return
	}
	ctx, cancel := context.WithTimeout(c.over, wire.CloseWait)
	defer cancel()
	_ = c.own.takeAway(ctx, time.Now().Add(ownStays))
}
