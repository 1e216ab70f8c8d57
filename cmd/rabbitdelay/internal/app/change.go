package app

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console"
	"github.com/rabbitdelay/rabbitdelay/internal/channels"
)

// Change is a command that changes or removes something. Consent.Run calls Count, Do and Tell in this order.
type Change interface {
	// Count finds out what would be changed, and returns the question to ask. If the question has no text, or with
	// --yes or --dry-run, the user is not asked.
	Count(ctx context.Context) (Question, error)
	// Do makes the change. With --dry-run it only determines what it would change.
	Do(ctx context.Context) error
	// Tell prints the results of Do, even if Do has failed halfway, and returns the command's error.
	Tell(took time.Duration, failed error) error
	// Entry describes the change for the audit, and Outcome describes the results of Do in one line. They are used if
	// there is a database.
	Entry() change.Entry
	Outcome() string
}

// Question is asked before something is changed.
type Question struct {
	Text     string // the question, which says what to type
	Answer   string // the answer that consents; default yes
	Declined string // the error for any other answer, which says what was not done
}

// Consent asks the user for consent to a change. It does not ask with --yes or --dry-run. If there is a database, Run
// records in its audit who has made the change.
type Consent struct {
	*App
	Actor

	Yes, DryRun bool

	db string // value of --db, for a command that uses a database only for the audit

	DB     *sql.DB              // the database with the audit; nil if there is none
	Record *console.AuditRecord // set while Do runs; nil without an audit
}

// Actor is the name under which the database's audit records a change.
type Actor struct{ name string }

// RegisterActor adds the flag --actor.
func (a *Actor) RegisterActor(f *pflag.FlagSet) {
	f.StringVar(&a.name, "actor", "", "name to record in the database's audit log; default: user@host")
}

// Name returns the value of --actor. The default is the user and the host of this process.
func (a *Actor) Name() string {
	if a.name != "" {
		return a.name
	}
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// Operator returns an operator with the Actor's name, whose changes to the tasks of a store are recorded.
func (a *Actor) Operator(s *Store) change.Operator {
	return change.Operator{Name: a.Name(), Store: s.Store, Record: func(ctx context.Context, e change.Entry, do func() error) error {
		return console.NewAudit(s.DB).Record(ctx, a.Name(), e, func(*console.AuditRecord) (string, error) { return "", do() })
	}}
}

// Register adds the flags --yes, --actor and --dry-run. The parameter dryRun is the help text of --dry-run.
func (c *Consent) Register(f *pflag.FlagSet, dryRun string) {
	f.BoolVarP(&c.Yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVar(&c.DryRun, "dry-run", false, dryRun)
	c.RegisterActor(f)
}

// RegisterAudit adds the flag --db, for commands that use a database only for the audit.
func (c *Consent) RegisterAudit(f *pflag.FlagSet) {
	f.StringVar(&c.db, "db", "", databaseUsage+"; without a database, there is no audit")
}

// Possible returns an error if the change needs consent and there is no terminal on which to ask for it. Call it before
// making any change.
func (c *Consent) Possible() error {
	if c.Yes || c.DryRun || c.Interactive() {
		return nil
	}
	return errors.New("cannot ask for confirmation, because standard input is not a terminal; give --yes to continue without asking, or --dry-run to see what would happen")
}

// Run executes a change: it counts, asks for consent, makes the change, and prints the result.
func (c *Consent) Run(ctx context.Context, x Change) error {
	question, err := x.Count(ctx)
	if err != nil {
		return err
	}
	if question.Text != "" && !c.Yes && !c.DryRun {
		if err := c.Confirm(question); err != nil {
			return err
		}
	}
	began := time.Now()
	if err = c.do(ctx, x); errors.Is(err, console.ErrNotRecorded) {
		return fmt.Errorf("%w; to make the change without an audit, omit database.url and --db", err)
	}
	return x.Tell(time.Since(began), err)
}

// do runs x.Do, and records it if there is an audit.
func (c *Consent) do(ctx context.Context, x Change) error {
	if c.DB == nil || c.DryRun {
		return x.Do(ctx)
	}
	return console.NewAudit(c.DB).Record(ctx, c.Name(), x.Entry(), func(record *console.AuditRecord) (string, error) {
		c.Record = record
		err := x.Do(ctx)
		return x.Outcome(), err
	})
}

// AdviseRepeat adds advice on how to complete an interrupted change to its error. It returns nil if err is nil, and
// does not add the advice if a permission is missing.
func AdviseRepeat(err error) error {
	if err == nil {
		return nil
	}
	if channels.IsForbidden(err) {
		return err // the command would fail again
	}
	return fmt.Errorf("%w; run the command again to continue", err)
}

// Confirm asks a question, and returns an error unless the answer consents.
func (a *App) Confirm(q Question) error {
	answer, err := a.Ask(q.Text)
	if err == nil && answer != cmp.Or(q.Answer, "yes") {
		err = errors.New(q.Declined)
	}
	return err
}
