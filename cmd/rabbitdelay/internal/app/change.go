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

	"github.com/rabbitdelay/rabbitdelay/amqpx/console"
)

// Change is a command that changes or removes something. Consent.Run calls its methods in this order.
type Change interface {
	// Count finds out what would be changed, and returns the question to ask. A question without a text is not asked.
	// With --dry-run, no question is asked.
	Count(ctx context.Context) (Question, error)
	// Do makes the change, or with --dry-run finds out what it would change.
	Do(ctx context.Context) error
	// Tell prints the results of Do, even if Do failed halfway, and returns the error of the command.
	Tell(took time.Duration, failed error) error
	// Entry describes the change for the audit, and Outcome describes the results of Do in one line. They are used if
	// there is a database.
	Entry() console.AuditEntry
	Outcome() string
}

// Question is asked before something is changed.
type Question struct {
	Text     string // includes what to type
	Answer   string // the answer that consents; default yes
	Declined string // the error for any other answer, which says what was not done
}

// Consent is the user's consent to a change. It is given by --yes, not needed with --dry-run, and otherwise asked
// for. Run records who gave it in the audit of a database.
type Consent struct {
	*App
	Actor

	Yes, DryRun bool

	db string // --db of a command that uses the database only for the audit

	DB     *sql.DB              // the database with the audit; nil if there is none
	Record *console.AuditRecord // set while Do runs; nil without an audit
}

// Actor is the name under which the database's audit records a change.
type Actor struct{ name string }

// RegisterActor adds the flag --actor.
func (a *Actor) RegisterActor(f *pflag.FlagSet) {
	f.StringVar(&a.name, "actor", "", "who does this, for the audit of the database; default user@host")
}

// Name returns the value of --actor, or by default the user and the host of this process.
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

// Audited calls do and records it in the audit of the database. The detail describes what the action and its target
// do not, such as the new due time.
func (a *Actor) Audited(ctx context.Context, db *sql.DB, action, target, detail string, do func() error) error {
	e := console.AuditEntry{Who: a.Name(), Action: action, Target: target, Detail: detail}
	return console.NewAudit(db).Record(ctx, e, func(*console.AuditRecord) (string, error) { return "", do() })
}

// Register adds the flags --yes, --actor and --dry-run. dryRun is the help of --dry-run.
func (c *Consent) Register(f *pflag.FlagSet, dryRun string) {
	f.BoolVarP(&c.Yes, "yes", "y", false, "do not ask")
	f.BoolVar(&c.DryRun, "dry-run", false, dryRun)
	c.RegisterActor(f)
}

// RegisterAudit adds the flag --db, for commands that do not need a database otherwise.
func (c *Consent) RegisterAudit(f *pflag.FlagSet) {
	f.StringVar(&c.db, "db", "", databaseUsage+"; without it there is no audit")
}

// Possible returns an error if consent is needed and the user cannot be asked. Call it before making any change.
func (c *Consent) Possible() error {
	if c.Yes || c.DryRun || c.Interactive() {
		return nil
	}
	return errors.New("cannot ask, because standard input is not a terminal; give --yes to go on without asking, or --dry-run to see what would happen")
}

// Run counts, asks for consent, makes the change, and reports the result.
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
		return fmt.Errorf("%w; without database.url and --db nothing is recorded", err)
	}
	return x.Tell(time.Since(began), err)
}

// do runs x.Do, and records it if there is an audit.
func (c *Consent) do(ctx context.Context, x Change) error {
	if c.DB == nil || c.DryRun {
		return x.Do(ctx)
	}
	e := x.Entry()
	e.Who = c.Name()
	return console.NewAudit(c.DB).Record(ctx, e, func(record *console.AuditRecord) (string, error) {
		c.Record = record
		err := x.Do(ctx)
		return x.Outcome(), err
	})
}

// GoOn adds to the error of an interrupted change how to resume it. It returns nil if err is nil.
func GoOn(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; give the command again to go on", err)
}

// Confirm asks a question, and returns an error unless the answer consents.
func (a *App) Confirm(q Question) error {
	answer, err := a.Ask(q.Text)
	if err == nil && answer != cmp.Or(q.Answer, "yes") {
		err = errors.New(q.Declined)
	}
	return err
}
