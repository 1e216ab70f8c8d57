package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/program"
	"github.com/rabbitdelay/rabbitdelay/cmd/internal/term"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/doctor"
	"github.com/rabbitdelay/rabbitdelay/topology/live"
	"github.com/rabbitdelay/rabbitdelay/topology/live/snapshot"
)

// Exit codes of doctor.
const (
	exitFindings = 1
	exitBlind    = 2 // it could not look, at all or at everything
)

// doctorTimeout bounds one look at a broker.
const doctorTimeout = 2 * time.Minute

// doctorRun is one run of doctor.
type doctorRun struct {
	a        *app
	peek     int
	roles    []string
	skip     []string
	amqpOnly bool
	db       string
	failOn   string
}

// fails reports whether findings are as severe as --fail-on wants them.
func (d *doctorRun) fails(r doctor.Report) bool {
	return r.Count(doctor.SeverityCritical) > 0 || d.failOn == string(doctor.SeverityWarning) && !r.Clean()
}

func (a *app) doctorCommand() *cobra.Command {
	d := &doctorRun{a: a}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems on the broker before they cost messages",
		Long: `doctor compares the live broker with what the settings and the file describe, and
looks for what breaks delays: policies that lower a TTL or expire a queue,
dead-lettering that falls back to at most once, missing queues, bindings and
permissions, parked messages and dead letters, alarms, clocks that differ, messages
in older layouts, and, with a database, overdue tasks that no relay sends. Each
finding says why it matters and how to mend it, without losing a message.

It cannot see the settings of RabbitMQ's nodes: the size of the Raft log,
consumer_timeout, dead_letter_worker_publisher_confirm_timeout. It notes a node
without advanced.config, where the last one would stand; docs/rabbitmq.conf and
docs/advanced.config recommend values and say how to look.

It reads the management API if that answers, else what AMQP shows. Its first
line lists what it could not check; a report with such a line is not clean. It
changes nothing, and takes no message out of your queues.

Exit code: 0 nothing is wrong; 1 findings, with --fail-on critical only critical
ones; 2 none of these, but not everything could be checked (see --amqp-only and
--skip), or nothing could.`,
		Example: `  rabbitdelay doctor -f delays.yaml
  rabbitdelay doctor -f delays.yaml --json | jq -r '.findings[] | .severity + " " + .what'
  rabbitdelay doctor -f delays.yaml --fail-on critical
  rabbitdelay doctor --role producer --amqp-only --url amqp://producer:secret@broker/`,
		Args: func(c *cobra.Command, args []string) error {
			if failOn := doctor.Severity(d.failOn); failOn != doctor.SeverityWarning && failOn != doctor.SeverityCritical {
				return blind(fmt.Errorf("--fail-on: %q; expected warning or critical", d.failOn))
			}
			return blind(program.NoArgs(c, args))
		},
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := d.examine(c.Context())
			if err != nil {
				if c.Context().Err() != nil {
					return err
				}
				return blind(err)
			}
			if a.JSON {
				err = a.PrintJSON(r)
			} else {
				if a.Quiet {
					r.Notes = nil
				}
				err = r.Render(a.Stdout, a.doctorStyle())
			}
			if err != nil {
				return blind(err)
			}
			switch {
			case d.fails(r):
				return program.Exit(exitFindings)
			case !r.Complete():
				return program.Exit(exitBlind)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&d.amqpOnly, "amqp-only", false, "check over AMQP alone, and do not report what only the management API shows as unchecked")
	c.Flags().StringSliceVar(&d.skip, "skip", nil, "do not check these areas: "+strings.Join(areaNames(), ", "))
	c.Flags().StringVar(&d.db, "db", "", databaseUsage+"; without it tasks are not checked")
	c.Flags().StringSliceVar(&d.roles, "role", nil, "what the user is for: producer, consumer, bootstrapper (default: all; without bootstrapper if broker.declare is nothing)")
	c.Flags().StringVar(&d.failOn, "fail-on", string(doctor.SeverityWarning), "exit with 1 for findings of this `SEVERITY` or above: warning, critical")
	_ = c.RegisterFlagCompletionFunc("fail-on", cobra.FixedCompletions([]string{string(doctor.SeverityWarning), string(doctor.SeverityCritical)}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	c.Flags().IntVar(&d.peek, "peek", 0, "read up to this many parked messages, show their destinations, and put them back")
	_ = c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions( // the flag exists
		[]string{string(doctor.RoleProducer), string(doctor.RoleConsumer), string(doctor.RoleBootstrapper)}, cobra.ShellCompDirectiveNoFileComp))
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return blind(fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
	})
	return c
}

func areaNames() []string {
	names := make([]string, len(doctor.Areas))
	for i, a := range doctor.Areas {
		names[i] = string(a)
	}
	return names
}

// skipped are the areas that need not be looked at. AMQP alone tells nothing of
// most of them.
func (d *doctorRun) skipped() ([]doctor.Area, error) {
	var areas []doctor.Area
	if d.amqpOnly {
		areas = slices.DeleteFunc(slices.Clone(doctor.Areas), func(a doctor.Area) bool { return a == doctor.AreaDatabase })
	}
	for _, n := range d.skip {
		if !slices.Contains(doctor.Areas, doctor.Area(n)) {
			return nil, fmt.Errorf("--skip: %q; expected %s", n, strings.Join(areaNames(), ", "))
		}
		areas = append(areas, doctor.Area(n))
	}
	return areas, nil
}

// blind is the error of a doctor who could not look.
func blind(err error) error {
	if err == nil {
		return nil
	}
	return &program.StatusError{Code: exitBlind, Err: err}
}

func (d *doctorRun) examine(ctx context.Context) (doctor.Report, error) {
	a := d.a
	c, err := a.Load(a.Database(d.db), nil)
	if err != nil {
		return doctor.Report{}, err
	}
	cfg, src := doctor.Config{}, snapshot.Source{Peek: d.peek}
	if cfg.Roles, err = parseRoles(d.roles, c.Broker.Declare); err != nil {
		return doctor.Report{}, err
	}
	if cfg.Skip, err = d.skipped(); err != nil {
		return doctor.Report{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	defer a.Waiting("looking at the broker")()
	if err := a.examined(ctx, c, &cfg, &src, "rabbitdelay doctor"); err != nil {
		return doctor.Report{}, err
	}
	if d.amqpOnly {
		src.Management = nil
	}
	src.ProbeInstants = func(ctx context.Context) (bool, error) {
		err := proveInstants(ctx, c)
		if errors.Is(err, live.ErrInstantsIgnored) {
			return false, nil
		}
		return err == nil, err
	}
	snap, err := snapshot.Take(ctx, cfg, src)
	if err != nil {
		return doctor.Report{}, err
	}
	if c.Database.URL != "" {
		if snap.Tasks, err = overdueTasks(ctx, c); err != nil {
			snap.Unseen = append(snap.Unseen, doctor.Unseen{Area: doctor.AreaDatabase, Why: term.OneLine(err.Error())})
		}
	}
	return doctor.Diagnose(cfg, snap), nil
}

// proveInstants proves the holding queues as each client does, with the same rights.
// Where they are not there yet it takes a queue of its own.
func proveInstants(ctx context.Context, c *config.Config) error {
	s, err := c.Offline()
	if err != nil {
		return err
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(2 * time.Second)) }() // the answer is there
	if canary, ok := s.(amqpx.Canary); ok {
		_, err = live.Broker{Conn: conn}.Prove(ctx, c.Delay.Prefix, canary.Canary)
	}
	if _, clock := errors.AsType[*live.ClockError](err); clock {
		return nil // it delays; how far apart the clocks are is a finding of its own
	}
	if err == nil || errors.Is(err, live.ErrInstantsIgnored) {
		return err
	}
	if own := live.ProbeInstants(ctx, c.Delay.Prefix, c.Dial); own == nil || errors.Is(own, live.ErrInstantsIgnored) {
		return own
	}
	return err
}

// examined fills in what a look at the broker needs, by the settings.
func (a *app) examined(ctx context.Context, c *config.Config, cfg *doctor.Config, src *snapshot.Source, name string) (err error) {
	cfg.Prefix, cfg.File, cfg.Plugin, cfg.MaxRouteQueues = c.Delay.Prefix, c.File(), pluginUse(c), c.Broker.MaxRouteQueues
	if cfg.Want, err = a.described(ctx, c); err != nil {
		return err
	}
	// A name of its own, by which the management API tells when it connected.
	c.Broker.ConnectionName = name + " " + uuid.NewString()
	src.Dial, src.ConnectionName = c.Dial, c.Broker.ConnectionName
	src.ProbePlugin = func(ctx context.Context) (bool, error) {
		err := live.ProbePlugin(ctx, c.Dial)
		if errors.Is(err, live.ErrNoPlugin) {
			return false, nil
		}
		return err == nil, err
	}
	if cfg.Vhost, err = c.Vhost(); err != nil {
		return err
	}
	src.Management, err = c.Management()
	if errors.Is(err, config.ErrNoManagement) || errors.Is(err, config.ErrNoBroker) {
		return nil // what then cannot be seen is said where it is missing
	}
	return err
}

// described is what should exist. Without the plugin that the configuration asks
// for, it is what does not depend on it.
func (a *app) described(ctx context.Context, c *config.Config) (topology.Topology, error) {
	s, err := c.Strategy(ctx, a.Logger())
	if errors.Is(err, live.ErrNoPlugin) {
		return topology.DeliveryTopology(c.Delay.Prefix).Merge(c.Topology.WithDestinationQueues(c.Delay.Prefix, c.Delay.QueueType))
	}
	if err != nil {
		return topology.Topology{}, err
	}
	return c.Describe(s)
}

func pluginUse(c *config.Config) doctor.PluginUse {
	switch {
	case c.Delay.Strategy == config.StrategyPlugin:
		return doctor.PluginRequired
	case c.Delay.Strategy == config.StrategyAuto && (c.Delay.Plugin.Min > 0 || c.Delay.Plugin.Max > 0):
		return doctor.PluginOptional
	}
	return doctor.PluginUnused
}

func parseRoles(names []string, declare amqpx.Declaration) ([]doctor.Role, error) {
	var roles []doctor.Role
	for _, n := range names {
		switch r := doctor.Role(n); r {
		case doctor.RoleProducer, doctor.RoleConsumer, doctor.RoleBootstrapper:
			roles = append(roles, r)
		default:
			return nil, fmt.Errorf("--role: %q; expected producer, consumer or bootstrapper", n)
		}
	}
	if len(roles) > 0 {
		return roles, nil
	}
	if declare == amqpx.DeclareNothing {
		return []doctor.Role{doctor.RoleProducer, doctor.RoleConsumer}, nil
	}
	return []doctor.Role{doctor.RoleProducer, doctor.RoleConsumer, doctor.RoleBootstrapper}, nil
}

// doctorStyle is coloured and as wide as the terminal on one, unless NO_COLOR
// says otherwise.
func (a *app) doctorStyle() doctor.Style {
	s := doctor.Style{}
	if !term.Is(a.Stdout) {
		return s
	}
	s.Color = os.Getenv("NO_COLOR") == "" && !strings.EqualFold(os.Getenv("TERM"), "dumb")
	columns, _ := term.Size(a.Stdout)
	s.Width = min(columns, 120)
	return s
}
