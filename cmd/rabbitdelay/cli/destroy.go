package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
)

// destroyed is the result of destroy.
type destroyed struct {
	Deleted  int     `json:"deleted"`
	Absent   int     `json:"absent"`
	Kept     int     `json:"kept"`
	Failed   int     `json:"failed"`
	Messages int64   `json:"messages_deleted"`
	Seconds  float64 `json:"seconds"`
}

// wouldDestroy is the result of destroy --dry-run.
type wouldDestroy struct {
	Delete   int    `json:"would_delete"`
	Keep     int    `json:"would_keep"`
	Absent   int    `json:"absent"`
	Messages int64  `json:"messages"`
	Refused  string `json:"refused,omitempty"`
}

// destroyRun is one run of destroy.
type destroyRun struct {
	a            *app
	yes, dryRun  bool
	force        bool
	destinations bool
	messages     int64
	layouts      []string
	all          bool
	retire       bool // previous layouts only
}

func (a *app) destroyCommand() *cobra.Command {
	r := &destroyRun{a: a}
	c := &cobra.Command{
		Use:   "destroy",
		Short: "Delete a layout that nothing uses any more",
		Long: `destroy deletes the layout that the settings and the file describe, and those
under delay.previous: their delay queues, the exchanges before and between
them, and the bindings of destinations for them. The names of the ttl
strategy's and the plugin's objects do not show which configuration uses them.
They stay while the broker has another layout that the file does not describe,
unless --layout names them. The delivery exchange, the parked queue and route
queues go too when nothing else on the broker uses them. Destinations and the
file's other objects stay unless --destinations is given. An object that
something else is bound to always stays, and so does a dead-letter queue while
its destination's queue stays.

It shows what would go and asks; without a terminal it needs --yes. It refuses,
and touches nothing, while messages wait in the objects to delete or consumers
are attached to them. Unacknowledged messages and dead letters in transit count
too; counting them needs the management API. Without it destroy refuses; with
--force it then deletes delay queues only, because it cannot see what else is
in use.

Exit code: 0 deleted, nothing to delete, or shown with --dry-run; 1 refused, or
an error.`,
		Example: `  rabbitdelay destroy -f old.yaml --dry-run
  rabbitdelay destroy -f old.yaml
  rabbitdelay destroy --layout delay.bucket.hex --yes`,
		Args: program.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c.Context()) },
	}
	f := c.Flags()
	f.BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&r.dryRun, "dry-run", false, "show what would go and what would stay, and delete nothing")
	f.BoolVar(&r.force, "force", false, "delete delay queues with their messages, and go on without the management API")
	f.Int64Var(&r.messages, "messages", 0, "with --force: the most messages that may be deleted, else refuse; required for destinations with messages or consumers")
	f.BoolVar(&r.destinations, "destinations", false, "also delete the destinations' queues and dead-letter queues, and the file's own exchanges, queues and bindings")
	f.StringSliceVar(&r.layouts, "layout", nil, "delete this layout instead of the settings' one; doctor shows the names: delay.bucket.hex, or a single queue of the ttl strategy, delay.ttl.15m")
	f.BoolVar(&r.all, "all", false, "list every object")
	return c
}

// interactive tells whether somebody can be asked.
func (a *app) interactive() bool {
	return term.Is(a.Stdin)
}

func (r *destroyRun) check() error {
	switch {
	case r.a.Given("messages") && !r.force:
		return errors.New("--messages limits --force; give both")
	case r.messages < 0:
		return fmt.Errorf("--messages: %d; expected 0 or more", r.messages)
	case r.destinations && len(r.layouts) > 0:
		return errors.New("both --destinations and --layout: a layout on the broker has no destinations of its own; give one")
	}
	return nil
}

func (r *destroyRun) run(ctx context.Context) error {
	if err := r.check(); err != nil {
		return err
	}
	s, err := r.a.setup(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if !r.yes && !r.dryRun && !r.a.interactive() {
		return errors.New("cannot ask, because standard input is not a terminal; give --yes to delete without asking, or --dry-run to see what would be deleted")
	}
	if err := r.choose(ctx, s); err != nil {
		return err
	}
	o := topology.RemovalOptions{Prefix: s.cfg.Delay.Prefix, Layouts: r.layouts, Destinations: r.destinations, Force: r.force}
	if r.a.Given("messages") {
		o.Messages = &r.messages
	}
	done := r.a.Waiting("looking at the broker")
	removal, err := s.broker.Removal(ctx, s.want, o)
	done()
	if err != nil {
		return err
	}
	if err := r.show(removal); err != nil {
		return err
	}
	switch {
	case r.dryRun:
		return r.tell(s, removal)
	case removal.Refusal() != nil:
		return r.refused(s, removal)
	case !removal.Empty() && !r.yes:
		if err := r.ask(removal, &o); err != nil {
			return err
		}
	}
	return r.advised(s, r.destroy(ctx, s, o))
}

// choose replaces what the settings describe: by that together with the previous
// layouts, or by the layouts that were named.
func (r *destroyRun) choose(ctx context.Context, s *setup) error {
	prefix := s.cfg.Delay.Prefix
	if r.retire {
		return r.choosePrevious(s)
	}
	if len(r.layouts) == 0 {
		return s.withPrevious(ctx, r.a)
	}
	if !s.readable {
		return errors.New("--layout needs the management API to find the layout's objects, and that does not answer")
	}
	found, err := s.broker.Inspector.Inspect(ctx, topology.Topology{})
	if err != nil {
		return err
	}
	for _, name := range r.layouts {
		if t := found.Layout(prefix, name); len(t.Queues)+len(t.Exchanges) == 0 {
			return fmt.Errorf("--layout: %q: there is no such layout; on the broker are: %s", name, strings.Join(layoutNames(found, prefix), ", "))
		}
	}
	s.want, err = found.Layout(prefix, r.layouts...).Merge(topology.DeliveryTopology(prefix))
	return err
}

// layoutNames are the layouts that a broker has.
func layoutNames(found topology.Live, prefix string) []string {
	names := []string{}
	for q := range found.Queues {
		if l, ok := topology.LayoutOf(prefix, q); ok {
			names = append(names, l.Name)
		}
	}
	for e := range found.Exchanges {
		if l, ok := topology.LayoutOf(prefix, e); ok {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return []string{"none"}
	}
	return slices.Compact(names)
}

// withPrevious adds the queues of the previous layouts.
func (s *setup) withPrevious(ctx context.Context, a *app) error {
	if len(s.cfg.Delay.Previous) == 0 {
		return nil
	}
	strategy, err := s.cfg.Strategy(ctx, a.Logger())
	if err != nil {
		return err
	}
	s.want, err = s.cfg.DescribeAll(strategy)
	return err
}

func (r *destroyRun) show(m topology.Removal) error {
	a := r.a
	switch {
	case a.JSON:
		for _, s := range m.Steps {
			if s.Action == topology.ActionAbsent || !r.dryRun && s.Action == topology.ActionDelete {
				continue
			}
			if err := a.PrintJSON(s); err != nil {
				return err
			}
		}
		return nil
	case a.Quiet && !r.dryRun:
		return nil
	}
	return m.Render(a.Stdout, r.all)
}

// tell is the end of a dry run.
func (r *destroyRun) tell(s *setup, m topology.Removal) error {
	out := wouldDestroy{Delete: m.Count(topology.ActionDelete), Keep: m.Count(topology.ActionKeep), Absent: m.Count(topology.ActionAbsent), Messages: m.Messages()}
	if err := m.Refusal(); err != nil {
		out.Refused = term.OneLine(err.Error())
	}
	if r.a.JSON {
		if err := r.a.PrintJSON(out); err != nil {
			return err
		}
	} else {
		r.a.Printf("dry run: %s would be deleted with %s, %d kept, %d are not there\n", counted(int64(out.Delete), "object"), counted(out.Messages, "message"), out.Keep, out.Absent)
	}
	return r.advised(s, m.Refusal())
}

// refused says that nothing was done.
func (r *destroyRun) refused(s *setup, m topology.Removal) error {
	if r.a.JSON {
		if err := r.a.PrintJSON(destroyed{Absent: m.Count(topology.ActionAbsent), Kept: m.Count(topology.ActionDelete) + m.Count(topology.ActionKeep)}); err != nil {
			return err
		}
	}
	return r.advised(s, m.Refusal())
}

// advised adds to a refusal what this command can do about it.
func (r *destroyRun) advised(s *setup, err error) error {
	full, isFull := errors.AsType[*topology.NotEmptyError](err)
	switch {
	case errors.Is(err, topology.ErrUnseen) && !s.readable && r.retire:
		return fmt.Errorf("%w; make the management API reachable (broker.management_url)", err)
	case errors.Is(err, topology.ErrUnseen) && !s.readable:
		return fmt.Errorf("%w; make the management API reachable (broker.management_url), or give --force to delete the delay queues all the same", err)
	case !isFull || r.retire || full.Bound != nil:
		return err
	case r.destinations:
		return fmt.Errorf("%w; --force --messages %d deletes the messages too", err, full.Total)
	case !r.force:
		return fmt.Errorf("%w; --force deletes the messages too", err)
	}
	return err
}

var errDeclined = errors.New("nothing was deleted")

// ask asks on the terminal. Who deletes messages types their number, and no more
// of them are deleted.
func (r *destroyRun) ask(m topology.Removal, o *topology.RemovalOptions) error {
	question, answer := fmt.Sprintf("Delete %s? Type yes: ", counted(int64(m.Count(topology.ActionDelete)), "object")), "yes"
	n := m.Messages()
	if n > 0 {
		question = fmt.Sprintf("Delete %s and their messages, permanently? Type the number of messages, %d, to confirm: ", counted(int64(m.Count(topology.ActionDelete)), "object"), n)
		answer = strconv.FormatInt(n, 10)
	}
	if _, err := fmt.Fprint(r.a.Stderr, question); err != nil {
		return err
	}
	line, err := r.a.answer()
	if err != nil {
		return err
	}
	if line != answer {
		return errDeclined
	}
	if n > 0 && o.Messages == nil && !o.Destinations {
		o.Messages = &n
	}
	return nil
}

// answer reads a line from the terminal, empty at its end.
func (a *app) answer() (string, error) {
	line, err := bufio.NewReader(a.Stdin).ReadString('\n')
	switch {
	case errors.Is(err, io.EOF):
		err = nil
	case err != nil:
		_, _ = fmt.Fprintln(a.Stderr) // the question's line
	}
	return strings.TrimSpace(line), err
}

func (r *destroyRun) destroy(ctx context.Context, s *setup, o topology.RemovalOptions) error {
	a := r.a
	done := a.Waiting("deleting, after a check for messages in transit")
	rep, err := s.broker.Destroy(ctx, s.want, o)
	done()
	out := destroyed{
		Deleted: rep.Count(live.StateDeleted), Absent: rep.Count(live.StateAbsent), Kept: rep.Count(live.StateKept),
		Failed: rep.Count(live.StateFailed), Seconds: seconds(rep.Took),
	}
	for _, x := range rep.Results {
		out.Messages += x.Messages
	}
	if a.JSON {
		if perr := a.PrintJSON(out); perr != nil {
			return perr
		}
		return err
	}
	a.Printf("%s", rep)
	if out.Messages > 0 {
		a.Printf(", with %s", counted(out.Messages, "message"))
	}
	a.Printf(" in %.2f s\n", rep.Took.Seconds())
	return err
}
