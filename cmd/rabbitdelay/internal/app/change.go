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

// Change is a command that changes or removes something. Run takes its steps, in this order.
type Change interface {
	// Count looks at what would be changed, and returns the question to ask; one
	// without a text need not be asked. With --dry-run it is not asked either.
	Count(ctx context.Context) (Question, error)
	// Do does it, or with --dry-run finds out what it would do.
	Do(ctx context.Context) error
	// Tell prints what Do did, also when that failed on the way, and returns how the command ends.
	Tell(took time.Duration, failed error) error
	// Entry returns what is about to be done, and Outcome what Do has done, in a line: for the audit where
	// there is a database.
	Entry() console.AuditEntry
	Outcome() string
}

// Question is asked before something is changed.
type Question struct {
	Text     string // with what to type
	Answer   string // the one that consents; default yes
	Declined string // the error of any other answer: what was not done
}

// Consent is the leave to change something: given by --yes, needless with --dry-run,
// else asked for. Run records who has it in the audit of a database.
type Consent struct {
	*App
	Actor

	Yes, DryRun bool

	db string // --db, of a command that wants it for the audit alone

	DB     *sql.DB              // with the audit; nil: there is none
	Record *console.AuditRecord // while Do runs; nil without an audit
}

// Actor is who changes something, in the audit of the database.
type Actor struct{ name string }

// RegisterActor adds the flag --actor.
func (a *Actor) RegisterActor(f *pflag.FlagSet) {
	f.StringVar(&a.name, "actor", "", "who does this, for the audit of the database; default user@host")
}

// Name is who it is: what the flag says, or the user and the host of this process.
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

// Audited does something, and records it in the audit of the database. detail is what the
// action and its target leave open, such as the new instant.
func (a *Actor) Audited(ctx context.Context, db *sql.DB, action, target, detail string, do func() error) error {
	e := console.AuditEntry{Who: a.Name(), Action: action, Target: target, Detail: detail}
	return console.NewAudit(db).Record(ctx, e, func(*console.AuditRecord) (string, error) { return "", do() })
}

// Register adds the flags --yes, --actor and --dry-run, the latter with its help.
func (c *Consent) Register(f *pflag.FlagSet, dryRun string) {
	f.BoolVarP(&c.Yes, "yes", "y", false, "do not ask")
	f.BoolVar(&c.DryRun, "dry-run", false, dryRun)
	c.RegisterActor(f)
}

// RegisterAudit adds the flag --db, for what needs no database otherwise.
func (c *Consent) RegisterAudit(f *pflag.FlagSet) {
	f.StringVar(&c.db, "db", "", databaseUsage+"; without it there is no audit")
}

// Possible returns an error if nobody can be asked, before anything is begun.
func (c *Consent) Possible() error {
	if c.Yes || c.DryRun || c.Interactive() {
		return nil
	}
	return errors.New("cannot ask, because standard input is not a terminal; give --yes to go on without asking, or --dry-run to see what would happen")
}

// Run counts, asks, does and tells.
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

// do does x, and records it where there is an audit.
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

// GoOn adds to the error of an interrupted change how to go on; nil stays nil.
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
