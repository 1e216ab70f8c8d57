package layout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/destroy"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/removal"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/naming"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

type destroyed struct {
	Deleted  int     `json:"deleted"`
	Absent   int     `json:"absent"`
	Kept     int     `json:"kept"`
	Failed   int     `json:"failed"`
	Messages int64   `json:"messages_deleted"`
	Seconds  float64 `json:"seconds"`
}

type wouldDestroy struct {
	Delete   int    `json:"would_delete"`
	Keep     int    `json:"would_keep"`
	Absent   int    `json:"absent"`
	Messages *int64 `json:"messages"` // nil if it is unknown
	Refused  string `json:"refused,omitempty"`
}

// destroyRun is one run of destroy or retire.
type destroyRun struct {
	app.Consent

	force        bool
	destinations bool
	messages     int64
	layouts      []string
	all          bool
	retire       bool // only the previous layouts

	on      *app.Broker
	options removal.Options
	removal removal.Plan
	report  live.Report
}

// DestroyCommand returns the destroy command, which deletes a layout.
func DestroyCommand(a *app.App) *cobra.Command {
	r := &destroyRun{Consent: app.Consent{App: a}}
	c := &cobra.Command{
		Use:   "destroy",
		Short: "Delete a layout that is no longer used",
		Long: `Delete the delay queues defined by the settings and the file, with their
exchanges and bindings. It shows what it will delete and asks for confirmation.
It refuses while messages wait there or consumers are attached.`,
		Example: `  rabbitdelay destroy -f old.yaml --dry-run
  rabbitdelay destroy -f old.yaml
  rabbitdelay destroy --layout delay.bucket.hex --yes`,
		RunE: func(c *cobra.Command, _ []string) error { return r.destroy(c.Context()) },
	}
	f := c.Flags()
	r.Register(f, "show what would be deleted and what would stay")
	r.RegisterAudit(f)
	f.BoolVar(&r.force, "force", false, "delete delay queues with their messages, even without the management API")
	f.Int64Var(&r.messages, "messages", 0, "with --force, refuse to delete more messages than this; required for destinations with messages or consumers")
	f.BoolVar(&r.destinations, "destinations", false, "also delete the destinations' queues and dead-letter queues, and the file's own exchanges, queues and bindings")
	f.StringSliceVar(&r.layouts, "layout", nil, "delete these layouts instead, such as delay.bucket.hex, or delay.ttl.15m for one queue of the ttl strategy; doctor shows the names")
	f.BoolVar(&r.all, "all", false, "list every object")
	return c
}

func (r *destroyRun) destroy(ctx context.Context) (err error) {
	switch {
	case r.Given("messages") && !r.force:
		return errors.New("--messages only works with --force; add --force, or omit --messages")
	case r.messages < 0:
		return fmt.Errorf("--messages: %d; expected 0 or more", r.messages)
	case r.destinations && len(r.layouts) > 0:
		return errors.New("--destinations and --layout cannot be combined: --layout deletes only that layout, and the destinations belong to the configuration")
	}
	if err := r.Possible(); err != nil {
		return err
	}
	if r.on, err = r.Broker(ctx); err != nil {
		return err
	}
	defer r.on.Close()
	if err := r.choose(ctx); err != nil {
		return err
	}
	end, err := r.OpenAudit(r.on.Config)
	if err != nil {
		return err
	}
	defer end()
	r.options = removal.Options{Prefix: r.on.Config.Delay.Prefix, Layouts: r.layouts, Destinations: r.destinations, Force: r.force}
	if r.Given("messages") {
		r.options.Messages = &r.messages
	}
	r.on.Reread()
	return r.advised(r.Run(ctx, r))
}

// choose determines the layouts to delete. With --layout these are the named layouts. Otherwise they are the previous
// layouts and, except for retire, the current one.
func (r *destroyRun) choose(ctx context.Context) (err error) {
	on, prefix := r.on, r.on.Config.Delay.Prefix
	switch {
	case r.retire && len(on.Config.Delay.Previous) == 0:
		return errors.New("delay.previous is empty, so there is nothing to retire; list the earlier layouts there, or delete a layout that the file does not list with destroy --layout")
	case r.retire:
		// The file names these layouts, so their objects are deleted, even though the names of the ttl strategy's and
		// the plugin's objects do not show which configuration uses them.
		if on.Want, err = on.Config.DescribePrevious(on.Strategy); err != nil {
			return err
		}
		for _, q := range on.Want.Queues {
			r.layouts = append(r.layouts, q.Name)
		}
		for _, e := range on.Want.Exchanges {
			r.layouts = append(r.layouts, e.Name)
		}
		return nil
	case len(r.layouts) == 0 && len(on.Config.Delay.Previous) == 0:
		return nil
	case len(r.layouts) == 0:
		on.Want, err = on.Config.DescribeAll(on.Strategy)
		return err
	case !on.Readable:
		return errors.New("--layout needs the management API to find the layout's objects, but the management API does not answer")
	}
	found, err := on.Inspector.Inspect(ctx, topology.Topology{})
	if err != nil {
		return err
	}
	for _, name := range r.layouts {
		if t := found.Layout(prefix, name); len(t.Queues)+len(t.Exchanges) == 0 {
			return fmt.Errorf("--layout: the broker has no layout %q; it has: %s", name, strings.Join(layoutNames(found, prefix), ", "))
		}
	}
	on.Want, err = found.Layout(prefix, r.layouts...).Merge(topology.DeliveryTopology(prefix))
	return err
}

func layoutNames(found plan.State, prefix string) []string {
	var names []string
	for _, object := range slices.AppendSeq(slices.Collect(maps.Keys(found.Queues)), maps.Keys(found.Exchanges)) {
		if l, ok := naming.LayoutOf(prefix, object); ok {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return []string{"none"}
	}
	return slices.Compact(names)
}

// Count prints what would be deleted. If messages would be deleted, the user must type their number, and no more
// messages than that are deleted.
func (r *destroyRun) Count(ctx context.Context) (q app.Question, err error) {
	done := r.Waiting("inspecting the broker")
	r.removal, err = destroy.Plan(ctx, r.on.Broker, r.on.Want, r.options)
	done()
	if err == nil {
		err = r.show()
	}
	if err != nil || r.DryRun || r.removal.Refusal() != nil || r.removal.Empty() {
		return q, err
	}
	what := shown.Count(r.removal.Count(removal.ActionDelete), "object", "objects")
	n := r.removal.Messages()
	if n == 0 {
		return app.Question{Text: fmt.Sprintf("Delete %s? Type yes: ", what), Declined: declined}, nil
	}
	if !r.Yes && r.options.Messages == nil && !r.destinations {
		r.options.Messages = &n
	}
	return app.Question{
		Text:   fmt.Sprintf("Delete %s and their messages, permanently? Type the number of messages, %d, to confirm: ", what, n),
		Answer: strconv.FormatInt(n, 10), Declined: declined,
	}, nil
}

const declined = "nothing was deleted"

func (r *destroyRun) show() error {
	switch {
	case r.JSON:
		for _, s := range r.removal.Steps {
			if s.Action == removal.ActionAbsent || !r.DryRun && s.Action == removal.ActionDelete {
				continue
			}
			if err := r.PrintJSON(s); err != nil {
				return err
			}
		}
		return nil
	case r.Quiet && !r.DryRun:
		return nil
	}
	return r.removal.Render(r.Stdout, r.ReportStyle(), r.all)
}

func (r *destroyRun) Entry() change.Entry {
	e := change.Entry{Action: "destroy", Detail: strings.Join(r.layouts, ", ")}
	if r.retire {
		e.Action = "retire"
	}
	if r.destinations {
		e.Detail = "with destinations"
	}
	if r.force {
		e.Detail = strings.TrimPrefix(e.Detail+"; with messages", "; ")
	}
	return e
}

func (r *destroyRun) Outcome() string {
	messages := int64(0)
	for _, x := range r.report.Results {
		messages += x.Messages
	}
	return fmt.Sprintf("%d deleted with %s, %d kept, %d failed", r.report.Count(live.StateDeleted), shown.Count(messages, "message", "messages"), r.report.Count(live.StateKept), r.report.Count(live.StateFailed))
}

// Do deletes the objects, unless the plan is refused.
func (r *destroyRun) Do(ctx context.Context) (err error) {
	if err := r.removal.Refusal(); err != nil || r.DryRun {
		return err
	}
	defer r.Waiting("checking for messages in transit, then deleting")()
	r.report, err = destroy.Run(ctx, r.on.Broker, r.on.Want, r.options)
	return err
}

func (r *destroyRun) Tell(_ time.Duration, failed error) (err error) {
	m, rep := r.removal, r.report
	switch {
	case r.DryRun:
		out := wouldDestroy{Delete: m.Count(removal.ActionDelete), Keep: m.Count(removal.ActionKeep), Absent: m.Count(removal.ActionAbsent)}
		n, unknown := m.Messages(), !r.on.Readable || errors.Is(failed, removal.ErrUnseen) // AMQP counts only ready messages
		if n > 0 || !unknown {
			out.Messages = &n
		}
		if failed != nil {
			out.Refused = shown.OneLine(failed.Error())
		}
		with := shown.Known(n, unknown, func(n int64) string { return shown.Count(n, "message", "messages") })
		if out.Messages == nil {
			with = "an unknown number of messages"
		}
		err = r.Show(out, "dry run: %s would be deleted with %s, %d kept, %d do not exist\n",
			shown.Count(out.Delete, "object", "objects"), with, out.Keep, out.Absent)
	case m.Refusal() != nil:
		if r.JSON {
			err = r.PrintJSON(destroyed{Absent: m.Count(removal.ActionAbsent), Kept: m.Count(removal.ActionDelete) + m.Count(removal.ActionKeep)})
		}
	default:
		out := destroyed{
			Deleted: rep.Count(live.StateDeleted), Absent: rep.Count(live.StateAbsent), Kept: rep.Count(live.StateKept),
			Failed: rep.Count(live.StateFailed), Seconds: app.Seconds(rep.Took),
		}
		with := ""
		for _, x := range rep.Results {
			out.Messages += x.Messages
		}
		if out.Messages > 0 {
			with = ", with " + shown.Count(out.Messages, "message", "messages")
		}
		err = r.Show(out, "%s%s in %.2f s\n", rep, with, rep.Took.Seconds())
	}
	return cmp.Or(err, failed)
}

// advised adds to a refusal what the user can do about it.
func (r *destroyRun) advised(err error) error {
	full, isFull := errors.AsType[*removal.NotEmptyError](err)
	switch {
	case errors.Is(err, removal.ErrUnseen) && !r.on.Readable && r.retire:
		return fmt.Errorf("%w; make the management API reachable (broker.management_url)", err)
	case errors.Is(err, removal.ErrUnseen) && !r.on.Readable:
		return fmt.Errorf("%w; make the management API reachable (broker.management_url), or give --force to delete the delay queues anyway", err)
	case !isFull || r.retire || full.Bound != nil:
		return err
	case r.destinations:
		return fmt.Errorf("%w; --force --messages %d deletes the messages too", err, full.Total)
	case !r.force:
		return fmt.Errorf("%w; --force deletes the messages too", err)
	}
	return err
}

// RetireCommand returns the retire command, which deletes the layouts in delay.previous.
func RetireCommand(a *app.App) *cobra.Command {
	r := &destroyRun{Consent: app.Consent{App: a}, retire: true}
	c := &cobra.Command{
		Use:   "retire",
		Short: "Delete earlier layouts that have drained",
		Long: `Delete the layouts in delay.previous, after all their messages have left. It
shows what it will delete, asks for confirmation, and refuses while messages
wait there.`,
		Example: `  rabbitdelay retire -f delays.yaml --dry-run
  rabbitdelay retire -f delays.yaml`,
		RunE: func(c *cobra.Command, _ []string) error {
			err := r.destroy(c.Context())
			if err == nil && !r.DryRun {
				a.Notef("note: delay.previous is still in the settings: %s", doctor.RetiredAdvice)
			}
			return err
		},
	}
	f := c.Flags()
	r.Register(f, "show what would be deleted and what would stay")
	r.RegisterAudit(f)
	f.BoolVar(&r.all, "all", false, "list every object")
	return c
}
