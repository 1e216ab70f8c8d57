package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/destroy"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/removal"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// RetirePlan describes what a retirement would do.
type RetirePlan struct {
	Layouts []status.Layout
	Text    string // the plan, as "rabbitdelay retire --dry-run" prints it
	Refused string // why the retirement is not possible now; empty if it is possible
}

// previous returns the layouts that Retire deletes.
func (c *Core) previous(ctx context.Context) (topology.Topology, removal.Options, status.Source, error) {
	src, err := c.source(ctx)
	if err != nil {
		return topology.Topology{}, removal.Options{}, src, err
	}
	o := removal.Options{Prefix: src.Want.Prefix}
	if c.cfg.Previous == nil {
		return topology.Topology{}, o, src, fmt.Errorf("%w: this process was not given any earlier layouts", ErrUnavailable)
	}
	if src.Broker.Management == nil {
		return topology.Topology{}, o, src, fmt.Errorf("%w: retiring needs the management API, to count the waiting messages", ErrUnavailable)
	}
	t, err := c.cfg.Previous(ctx)
	for _, q := range t.Queues {
		o.Layouts = append(o.Layouts, q.Name)
	}
	for _, e := range t.Exchanges {
		o.Layouts = append(o.Layouts, e.Name)
	}
	return t, o, src, err
}

// planPatience limits how long a user waits for the plan of a retirement. The plan itself waits until the management
// API has counted all messages.
const planPatience = 15 * time.Second

// RetirePlan returns what Retire would delete, or why it would refuse.
func (c *Core) RetirePlan(ctx context.Context) (RetirePlan, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	o, err := c.overview(ctx)
	if err != nil {
		return RetirePlan{}, err
	}
	p := RetirePlan{Layouts: []status.Layout{}}
	for _, l := range o.Status.Layouts {
		if l.Earlier {
			p.Layouts = append(p.Layouts, l)
		}
	}
	t, opts, src, err := c.previous(ctx)
	if err != nil {
		return p, err
	}
	if len(t.Queues)+len(t.Exchanges) == 0 {
		p.Refused = "delay.previous is empty, so there is nothing to retire"
		return p, nil
	}
	conn, err := src.Broker.Dial(ctx)
	if err != nil {
		return p, ofBroker(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(goodbye)) }() // an error no longer matters
	one, stop := context.WithTimeout(ctx, planPatience)
	defer stop()
	m, err := destroy.Plan(one, live.Broker{Conn: conn, Inspector: src.Broker.Management}, t, opts)
	switch {
	case err != nil && one.Err() != nil && ctx.Err() == nil:
		return p, fmt.Errorf("%w: the management API, which has to count the waiting messages, has not done so within %v", ErrUnavailable, planPatience)
	case err != nil:
		return p, ofBroker(err)
	}
	var text strings.Builder
	if err := m.Render(&text, report.Style{}, false); err != nil {
		return p, err
	}
	if p.Text = text.String(); p.Text == "" {
		p.Refused = "the broker has no objects of the earlier layouts"
		return p, nil
	}
	if err := m.Refusal(); err != nil {
		p.Refused = err.Error()
	}
	return p, nil
}

// Retire starts a job that deletes the layouts in delay.previous.
func (c *Core) Retire(ctx context.Context, who Identity) (Job, error) {
	if !who.Role.May(RoleOperator) {
		return Job{}, fmt.Errorf("retire: %w", ErrForbidden)
	}
	p, err := c.RetirePlan(ctx)
	if err != nil {
		return Job{}, err
	}
	if p.Refused != "" {
		return Job{}, &change.FieldError{Field: "layouts", Reason: p.Refused}
	}
	return c.start(ctx, who, change.Entry{Action: "retire", Detail: "the layouts in delay.previous"}, 0, request{Retire: true})
}

// retire executes the job that Retire started.
func (c *Core) retire(ctx context.Context) (string, error) {
	t, opts, src, err := c.previous(ctx)
	if err != nil {
		return "", err
	}
	if len(t.Queues)+len(t.Exchanges) == 0 {
		return "", errors.New("delay.previous is empty, so there is nothing to retire")
	}
	conn, err := src.Broker.Dial(ctx)
	if err != nil {
		return "", ofBroker(err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(goodbye)) }() // an error no longer matters
	rep, err := destroy.Run(ctx, live.Broker{Conn: conn, Inspector: src.Broker.Management}, t, opts)
	if err != nil {
		return rep.String(), ofBroker(err)
	}
	return rep.String() + "; delay.previous is still in the settings: " + doctor.RetiredAdvice, nil
}
