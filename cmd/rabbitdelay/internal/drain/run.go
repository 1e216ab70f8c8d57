package drain

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	table "github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/plugintable"
	"github.com/rabbitdelay/rabbitdelay/internal/codec"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The size of a batch. A batch is sent and deleted before the next one is read.
const (
	portionRows  = 2000
	portionBytes = 32 << 20
	// inFlight is the maximum number of messages that are sent again after a kill because they were confirmed but not
	// recorded.
	inFlight = 200
	// sendFor is how long sending one message may take. After that, the run fails.
	sendFor = 30 * time.Second
)

// run is the state of one call to Run.
type run struct {
	cfg     Config
	rep     Report
	journal *journal
	offset  time.Duration // the broker's clock minus this process's
	portion []*table.Row
	bytes   int
}

// walk reads the table from its first row to its last, and moves it in batches.
func (r *run) walk(ctx context.Context) error {
	ended := false
	s := table.Selection{Vhost: r.cfg.Vhost, Exchanges: r.cfg.Exchanges, Margin: r.cfg.Margin}
	err := each(ctx, r.cfg.Shell, table.Read(s), func(l table.Line) error {
		switch {
		case l.Head != nil:
			r.offset = time.Duration(l.Head.Now-time.Now().UnixMilli()) * time.Millisecond
		case l.Row != nil:
			r.rep.Found++
			r.portion = append(r.portion, l.Row)
			if r.bytes += len(l.Row.Body) + len(l.Row.Properties); len(r.portion) >= r.cfg.portion || r.bytes >= portionBytes {
				return r.move(ctx)
			}
		case l.End != nil:
			ended = true
			r.rep.Found += l.End.Soon
			r.rep.Soon += l.End.Soon
			r.rep.Other = l.End.Other
			return r.move(ctx)
		}
		return nil
	})
	if err == nil && !ended {
		err = ErrIncomplete
	}
	return err
}

// move sends a batch and deletes the rows of the sent messages.
func (r *run) move(ctx context.Context) error {
	rows := r.portion
	r.portion, r.bytes = nil, 0
	err := r.sendAll(ctx, rows)
	if r.journal != nil && len(r.journal.pending) > 0 {
		sent := int64(len(r.journal.pending))
		gone, derr := r.delete(context.WithoutCancel(ctx)) // sent messages must not be delivered twice
		if derr == nil {
			r.rep.Twice += sent - gone
		}
		err = errors.Join(err, derr)
	}
	if r.cfg.Progress != nil {
		r.cfg.Progress(r.rep)
	}
	return err
}

// delete deletes the rows of sent messages and returns how many rows existed.
func (r *run) delete(ctx context.Context) (int64, error) {
	if err := r.journal.f.Sync(); err != nil { // so that the records survive a power failure
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, deleteFor)
	defer cancel()
	all := int64(0)
	for part := range slices.Chunk(r.journal.pending, r.cfg.portion) {
		answered := false
		err := each(ctx, r.cfg.Shell, table.Delete(part), func(l table.Line) error {
			if l.Deleted != nil {
				answered = true
				all += *l.Deleted
			}
			return nil
		})
		if err == nil && !answered {
			err = ErrIncomplete
		}
		if err != nil {
			return all, fmt.Errorf("deleting the sent messages from the plugin's table: %w", err)
		}
	}
	r.rep.Deleted += all
	return all, r.journal.deleted()
}

// deleteFor is how long a deletion may take.
const deleteFor = 10 * time.Minute

// sendAll sends concurrently. It stops at an error that does not concern a single message.
func (r *run) sendAll(ctx context.Context, rows []*table.Row) error {
	var (
		mu    sync.Mutex
		all   sync.WaitGroup
		stop  error
		place = make(chan struct{}, inFlight)
	)
	for _, row := range rows {
		place <- struct{}{}
		mu.Lock()
		ended := stop != nil || ctx.Err() != nil
		mu.Unlock()
		if ended {
			break
		}
		all.Go(func() {
			defer func() { <-place }()
			why, err := r.send(ctx, row)
			mu.Lock()
			defer mu.Unlock()
			exchange := string(row.Exchange)
			switch {
			case err != nil:
				stop = cmp.Or(stop, err)
				return
			case why == tooSoon:
				r.rep.Soon++
				return
			case why != "":
				same := func(x Refused) bool { return x.Exchange == exchange && x.Why == why }
				entry(&r.rep.Refused, same, Refused{Exchange: exchange, Why: why}).Count++
				return
			}
			r.rep.Sent++
			entry(&r.rep.Exchanges, func(x Moved) bool { return x.Exchange == exchange }, Moved{Exchange: exchange}).Sent++
			if r.journal != nil {
				stop = cmp.Or(stop, r.journal.sent(row.ID()))
			}
		})
	}
	all.Wait()
	return errors.Join(stop, ctx.Err())
}

// entry returns the matching element of a list, and appends one if there is none.
func entry[T any](list *[]T, meant func(T) bool, added T) *T {
	i := slices.IndexFunc(*list, meant)
	if i < 0 {
		i = len(*list)
		*list = append(*list, added)
	}
	return &(*list)[i]
}

// tooSoon is the reason for a message that became due too soon while other messages were being sent.
const tooSoon = "due too soon"

// send sends a message, or returns the reason why it stays. An error ends the run.
func (r *run) send(ctx context.Context, row *table.Row) (why string, err error) {
	if row.DueAt().Sub(time.Now().Add(r.offset)) < r.cfg.Margin/2 {
		return tooSoon, nil
	}
	raw, dest, why := r.message(row)
	if why != "" {
		return why, nil
	}
	// If the caller stopped waiting, the outcome would be unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendFor)
	defer cancel()
	if r.cfg.DryRun != nil {
		err = r.cfg.DryRun.Republish(ctx, raw, dest, row.DueAt(), r.offset)
	} else {
		err = inspect.Republish(ctx, r.cfg.Client, raw, dest, row.DueAt(), r.offset)
	}
	if why := refusal(err); why != "" {
		return why, nil
	}
	return "", err
}

// message returns a row as the message that was published, with its destination, or the reason why the message stays.
func (r *run) message(row *table.Row) (raw amqp.Delivery, dest topology.Destination, why string) {
	if len(row.Unreadable) > 0 {
		return raw, dest, "the broker cannot decode the message: " + string(row.Unreadable)
	}
	properties := codec.NewDecoder(row.Properties)
	p := properties.Properties()
	raw = amqp.Delivery{
		Headers: p.Headers, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode, Priority: p.Priority,
		CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageId: p.MessageId, Timestamp: p.Timestamp,
		Type: p.Type, UserId: p.UserId, AppId: p.AppId,
	}
	if err := properties.Err(); err != nil {
		return raw, dest, "the message's properties cannot be read: " + err.Error()
	}
	if len(row.Keys) != 1 {
		return raw, dest, fmt.Sprintf("the message has %d routing keys (CC, BCC), but a message in a delay queue has only one", len(row.Keys))
	}
	raw.Exchange, raw.RoutingKey, raw.Body = string(row.Exchange), string(row.Keys[0]), row.Body
	if raw.MessageId == "" {
		raw.MessageId = row.MessageID(r.rep.Node)
	}
	lost := inspect.UnsupportedProperties(raw)
	if raw.UserId != "" && raw.UserId != r.cfg.User {
		lost = append(lost, "user-id")
		raw.UserId = ""
	}
	if r.leaves("priority") {
		raw.Priority = min(raw.Priority, normalPriority)
	}
	lost = slices.DeleteFunc(lost, r.leaves)
	if len(lost) > 0 {
		return raw, dest, "the message would lose " + strings.Join(lost, ", ")
	}
	dest = topology.Destination{Exchange: raw.Exchange, RoutingKey: raw.RoutingKey}
	if naming.Reserved(r.cfg.Prefix, raw.Exchange) {
		var ok bool
		if dest, ok = destinationOf(r.cfg.Prefix, raw.RoutingKey); !ok {
			return raw, dest, "the message does not contain its destination"
		}
	}
	return raw, dest, ""
}

// destinationOf returns the destination of a message that rabbitdelay's strategy plugin published with the routing key.
// For any other key, ok is false.
func destinationOf(prefix, key string) (dest topology.Destination, ok bool) {
	rest, ok := strings.CutPrefix(key, "plugin.")
	if !ok {
		return topology.Destination{}, false
	}
	return topology.DestinationOf(prefix, rest)
}

// normalPriority is the highest priority that a quorum queue does not deliver ahead of other messages.
const normalPriority = 4

func (r *run) leaves(name string) bool { return slices.Contains(r.cfg.LeaveOut, name) }

// refusal returns the reason if an error concerns a single message. Messages with the same reason have the same text.
// It returns an empty string for an error that ends the run.
func refusal(err error) string {
	if e, ok := errors.AsType[*amqpx.MessageError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*topology.DestinationError](err); ok {
		if !e.Destination.ToExchange() {
			return e.Error() // a queue of rabbitdelay's strategy plugin
		}
		return "its destination " + e.Reason
	}
	if e, ok := errors.AsType[*topology.KeyError](err); ok {
		return fmt.Sprintf("the exchange and routing key are too long: the strategy needs up to %d more bytes, and a routing key has at most %d", e.Overhead, topology.MaxRoutingKey)
	}
	if e, ok := errors.AsType[*topology.DelayError](err); ok {
		return "its delay " + e.Reason
	}
	e, ok := errors.AsType[*amqp.Error](err)
	if ok && !errors.Is(err, amqpx.ErrOutcomeUnknown) && slices.Contains([]int{amqp.AccessRefused, amqp.NotFound, amqp.PreconditionFailed}, e.Code) {
		return e.Reason
	}
	return ""
}

// each calls the function do for each line that an expression prints. It does not read ahead, so the broker prints no
// faster than do can process the lines.
func each(ctx context.Context, shell Shell, expression string, do func(table.Line) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := shell(ctx, expression)
	if err != nil {
		return err
	}
	err = lines(out, do)
	if err != nil {
		cancel() // the rest of the output is not read
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

func lines(out io.Reader, do func(table.Line) error) error {
	in := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		l, ok, err := table.ParseLine(line)
		if err != nil {
			return err
		}
		if ok {
			if err := do(l); err != nil {
				return err
			}
		}
	}
}
