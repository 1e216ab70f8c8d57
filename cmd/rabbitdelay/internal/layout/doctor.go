package layout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/snapshot"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/program"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
)

// doctorTimeout limits one inspection of a broker, in addition to the time for which delay queues are watched.
const doctorTimeout = 2 * time.Minute

const doctorStandstill = 10 * time.Second

type doctorRun struct {
	*app.App

	peek     int
	roles    []string
	skip     []string
	amqpOnly bool
	failOn   string

	standstill app.Duration
}

// fails reports whether the report has findings of the severity in --fail-on or above.
func (d *doctorRun) fails(r doctor.Report) bool {
	return r.Count(doctor.SeverityCritical) > 0 || d.failOn == string(doctor.SeverityWarning) && !r.Clean()
}

// DoctorCommand returns the doctor command, which finds problems on the broker. If doctor cannot inspect the broker, it
// exits with ExitUnseen, except after wrong usage.
func DoctorCommand(a *app.App) *cobra.Command {
	d := &doctorRun{App: a, standstill: app.Duration(doctorStandstill)}
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems on the broker before messages are lost",
		Long: `Compare the broker with the settings and the file, and look for everything that
breaks delays. Each finding says why it matters and how to fix it without losing
a message.`,
		Example: `  rabbitdelay doctor -f delays.yaml
  rabbitdelay doctor -f delays.yaml --fail-on critical
  rabbitdelay doctor --json | jq -r '.findings[] | .severity + " " + .what'`,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := d.asked()
			if err != nil {
				return err
			}
			r, err := d.examine(c.Context(), cfg)
			switch {
			case err != nil && c.Context().Err() != nil:
				return err
			case err != nil:
				return blind(err)
			}
			return d.report(r)
		},
	}
	c.Flags().BoolVar(&d.amqpOnly, "amqp-only", false, "do not use the management API, and do not report the checks that this skips")
	c.Flags().StringSliceVar(&d.skip, "skip", nil, "do not check these areas, and do not report them as unchecked: "+strings.Join(areaNames(), ", "))
	app.DatabaseFlag(c.Flags(), "; without a database, tasks are not checked")
	c.Flags().StringSliceVar(&d.roles, "role", nil, "roles of the broker's user: producer, consumer, bootstrapper; default: all, but not bootstrapper if broker.declare is nothing")
	program.Choice(c, &d.failOn, "fail-on", string(doctor.SeverityWarning), "exit with 1 for findings of this `SEVERITY` or above", string(doctor.SeverityWarning), string(doctor.SeverityCritical))
	c.Flags().IntVar(&d.peek, "peek", 0, "read up to this many parked messages to show their destinations, and put them back")
	c.Flags().Var(&d.standstill, "standstill", "check whether delay queues with a TTL of up to this duration have stalled, 0 for none")
	_ = c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions( // cannot fail, because the flag exists
		[]string{string(doctor.RoleProducer), string(doctor.RoleConsumer), string(doctor.RoleBootstrapper)}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// report prints the findings and returns the error of the command.
func (d *doctorRun) report(r doctor.Report) (err error) {
	if d.JSON {
		err = d.PrintJSON(r)
	} else {
		if d.Quiet {
			r.Notes = nil
		}
		err = r.Render(d.Stdout, d.ReportStyle())
	}
	switch {
	case err != nil:
		return blind(err)
	case d.fails(r):
		return program.Exit(program.ExitError)
	case !r.Complete():
		return program.Exit(app.ExitUnseen)
	}
	return nil
}

func areaNames() []string {
	names := make([]string, len(doctor.Areas))
	for i, a := range doctor.Areas {
		names[i] = string(a)
	}
	return names
}

// skipped returns the areas that need not be checked. With --amqp-only, these are all areas except the database,
// because AMQP shows only some of them.
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

// blind returns the error of a doctor command that could not inspect the broker.
func blind(err error) error {
	return &program.StatusError{Code: app.ExitUnseen, Err: err}
}

// asked returns the part of the configuration that the flags determine and that does not depend on the broker. It
// returns an error if a flag is wrong.
func (d *doctorRun) asked() (cfg doctor.Config, err error) {
	if _, err = parseRoles(d.roles, ""); err != nil {
		return cfg, err
	}
	if cfg.Skip, err = d.skipped(); err != nil {
		return cfg, err
	}
	if d.standstill < 0 {
		return cfg, fmt.Errorf("--standstill: %s; expected 0 or more", d.standstill.String())
	}
	return cfg, nil
}

func (d *doctorRun) examine(ctx context.Context, cfg doctor.Config) (doctor.Report, error) {
	c, err := d.Load(nil)
	if err != nil {
		return doctor.Report{}, err
	}
	src := snapshot.Source{Peek: d.peek}
	if cfg.Roles, err = parseRoles(d.roles, c.Broker.Declare); err != nil {
		return doctor.Report{}, err
	}
	if d.standstill > 0 && !slices.Contains(cfg.Skip, doctor.AreaStandstill) {
		src.Standstill, src.Watch = &doctor.StallWatch{}, time.Duration(d.standstill)
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout+3*src.Watch)
	defer cancel()
	defer d.Waiting("inspecting the broker")()
	if err := d.Examined(ctx, c, &cfg, &src, "rabbitdelay doctor"); err != nil {
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
	began := time.Now()
	snap, err := snapshot.Take(ctx, cfg, src)
	if err != nil {
		return doctor.Report{}, err
	}
	if c.Database.URL != "" {
		err := d.WithStoreOf(ctx, c, func(ctx context.Context, s *app.Store) error {
			sum, err := status.Late(ctx, s.Store, time.Now(), began)
			snap.Tasks = &sum
			if err == nil {
				status.Recount(ctx, cfg, src.Management, &snap)
			}
			return err
		})
		if err != nil {
			snap.Unchecked = append(snap.Unchecked, doctor.Unchecked{Area: doctor.AreaDatabase, Why: shown.OneLine(err.Error())})
		}
	}
	return doctor.Diagnose(cfg, snap), nil
}

// proveInstants tests the native strategy's queues in the same way as a client, and with the same permissions. If the
// queues do not exist yet, it tests a separate queue.
func proveInstants(ctx context.Context, c *config.Config) error {
	s, err := c.Offline()
	if err != nil {
		return err
	}
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer app.Close(conn)
	if canary, ok := s.(amqpx.InstantProber); ok {
		_, err = live.Broker{Conn: conn}.Prove(ctx, c.Delay.Prefix, canary.Canary)
	}
	if _, clock := errors.AsType[*live.ClockError](err); clock {
		return nil // messages are delayed; the difference between the clocks is a separate finding
	}
	if err == nil || errors.Is(err, live.ErrInstantsIgnored) {
		return err
	}
	if own := live.ProbeInstants(ctx, c.Delay.Prefix, c.Dial); own == nil || errors.Is(own, live.ErrInstantsIgnored) {
		return own
	}
	return err
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
