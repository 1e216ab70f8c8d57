package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// goodbye bounds the end of a connection.
const goodbye = 2 * time.Second

// Peek is a method of DeadLetters.
func (c *Core) Peek(ctx context.Context, who Identity, queue string, limit int) (amqpx.Peeked, error) {
	if limit < 1 || limit > amqpx.MaxPeek {
		return amqpx.Peeked{}, &FieldError{"limit", fmt.Sprintf("%d; expected 1 to %d", limit, amqpx.MaxPeek)}
	}
	src, err := c.source(ctx)
	if err != nil {
		return amqpx.Peeked{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	conn, err := src.Broker.Dial(ctx)
	if err != nil {
		return amqpx.Peeked{}, ofBroker(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(goodbye)) }() // the work is done
	p, err := amqpx.Peek(ctx, conn, queue, amqpx.PeekOptions{Limit: limit, Prefix: src.Want.Prefix, Management: src.Broker.Management})
	veilDead(who, p.Messages)
	return p, ofBroker(err)
}

// options are what amqpx.Requeue takes.
func (c *Core) requeueOptions(ctx context.Context, r Requeue) (*amqpx.Client, amqpx.RequeueOptions, error) {
	o := amqpx.RequeueOptions{Queue: r.Queue, Filter: r.Filter, To: r.To, Limit: r.Limit, Rate: r.Rate}
	if c.cfg.Client == nil {
		return nil, o, fmt.Errorf("%w: this process has no client of the broker", ErrUnavailable)
	}
	src, err := c.source(ctx)
	if err != nil {
		src = status.Source{}
	}
	if err := o.Validate(src.Want.Prefix); err != nil {
		return nil, o, err
	}
	client, err := c.cfg.Client()
	if err != nil {
		return nil, o, ofBroker(err)
	}
	o.Management = src.Broker.Management
	if c.cfg.Store != nil { // and no interface with a nil pointer in it
		o.Tasks = c.cfg.Store
	}
	return client, o, nil
}

// RequeueDryRun is a method of DeadLetters.
func (c *Core) RequeueDryRun(ctx context.Context, who Identity, r Requeue) (amqpx.RequeueReport, error) {
	if !who.Role.May(RoleOperator) {
		return amqpx.RequeueReport{}, fmt.Errorf("requeue: %w", ErrForbidden)
	}
	client, o, err := c.requeueOptions(ctx, r)
	if err != nil {
		return amqpx.RequeueReport{}, err
	}
	o.DryRun = true
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	rep, err := client.Requeue(ctx, o)
	return rep, ofBroker(err)
}

// Requeue is a method of DeadLetters.
func (c *Core) Requeue(ctx context.Context, who Identity, r Requeue) (Job, error) {
	if _, _, err := c.requeueOptions(ctx, r); err != nil {
		return Job{}, err
	}
	if r.Limit < 1 {
		return Job{}, &FieldError{"limit", fmt.Sprintf("%d; expected how many messages may go, 1 or more: what a dry run has counted", r.Limit)}
	}
	q := request{Requeue: &r}
	return c.start(ctx, who, Entry{Action: "requeue", Target: r.Queue, Detail: q.detail(false)}, int64(r.Limit), q)
}

// requeue runs the job.
func (c *Core) requeue(ctx context.Context, w *working, r Requeue) (string, error) {
	before := w.now().Done
	if r.Limit -= int(before); r.Limit <= 0 {
		return fmt.Sprintf("%d messages sent", before), nil
	}
	client, o, err := c.requeueOptions(ctx, r)
	if err != nil {
		return "", err
	}
	went := func(p amqpx.RequeueReport) int64 { return before + int64(p.Sent+p.Revived+p.Removed) }
	o.Progress = func(p amqpx.RequeueReport) { w.at(went(p), "") }
	p, err := client.Requeue(ctx, o)
	w.at(went(p), "")
	return fmt.Sprintf("%d looked at, %d sent, %d revived, %d removed, %d stayed", p.Looked, p.Sent, p.Revived, p.Removed, p.Stayed), ofBroker(err)
}

// chosen describes a filter to people, with values of headers if they may see them.
func chosen(f amqpx.DeadLetterFilter, values bool) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+" "+value)
		}
	}
	add("reason", strings.Join(f.Reasons, " or "))
	add("id", strings.Join(f.IDs, " or "))
	add("destination", strings.Join(f.Destinations, " or "))
	if f.Tasks {
		add("a", "task")
	}
	add("error", f.Error)
	add("header", header(f.Header, f.HeaderValue, values))
	if f.OlderThan > 0 {
		add("older than", topology.FormatDuration(f.OlderThan))
	}
	if f.NewerThan > 0 {
		add("newer than", topology.FormatDuration(f.NewerThan))
	}
	return strings.Join(parts, ", ")
}
