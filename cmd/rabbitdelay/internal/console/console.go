package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/api"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/auth"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/page"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Identity is the name and role of the caller of a request.
type Identity = service.Identity

// Role determines what a caller may do.
type Role = service.Role

// The roles. A viewer sees everything except the bodies of messages and most header values. An operator sees
// everything and can change things.
const (
	RoleViewer   = service.RoleViewer
	RoleOperator = service.RoleOperator
)

// ErrNobody is the error that Config.Identify returns if the caller of a request is unknown. The console answers such a
// request with 401. It answers an *auth.RefusedError with the error's status code. It logs any other error of Identify
// and answers with 503.
var ErrNobody = errors.New("nobody is logged in")

// DefaultKeepAudit is the default of Config.KeepAudit.
const DefaultKeepAudit = 90 * 24 * time.Hour

// Config configures a Console. Every field is optional. Pages and API operations that need a missing field report
// that it is missing.
type Config struct {
	// Store reads and changes the tasks. DB is its database, which also stores the audit and the jobs. Set both or
	// neither. Without a database, the audit and the jobs are kept in memory.
	Store *taskview.Store
	DB    *sql.DB
	// Client returns the client that requeues and discards messages. The client need not be connected yet.
	Client func() (*amqpx.Client, error)
	// Broker returns the source for an inspection of the broker. Source.Tasks and Source.Peek are not used.
	Broker func(ctx context.Context) (status.Source, error)
	// Previous returns the earlier layouts that an operator may retire.
	Previous func(ctx context.Context) (topology.Topology, error)
	// Problem returns the reason why the process cannot do its work, or nil. The first page shows it.
	Problem func() error

	// Prefix precedes all paths, for example /rabbitdelay. It is empty by default. Requests are answered with the
	// prefix and, for a proxy that strips it, without it.
	Prefix string
	// Identify returns the caller of a request, for a login in front of the console, such as auth.Proxy's. Callers with
	// a token from the users file need no other login. With Identify, the passwords in the users file are not used.
	// Without a users file, each process signs CSRF tokens with its own key.
	Identify func(r *http.Request) (Identity, error)
	// Users is the path of the file with users and tokens that SetUser and NewToken write. The console reads the file
	// again when it changes. With neither Users nor Identify, every caller is an operator, and the console only answers
	// requests to localhost, 127.0.0.1 and [::1].
	Users string
	// Proxies are the networks of the proxies whose X-Forwarded-For header is trusted. The console counts login
	// attempts by the address in this header. By default, no proxy is trusted.
	Proxies []netip.Prefix

	// KeepAudit is how long audit entries and jobs are kept. The minimum is an hour, and the default is
	// DefaultKeepAudit.
	KeepAudit time.Duration

	// Discarded is the directory in which the console saves the messages that it discards, in one file per job, which
	// only the file's owner can read. The console never deletes these files. By default, Discarded is empty and messages
	// cannot be discarded.
	Discarded string

	// Title is at the top of every page, so that users can tell two consoles apart. It is one line of at most 40
	// characters. The default is "rabbitdelay".
	Title string
	// Color is the colour of a line at the top of every page, for example #c62828. By default, there is no line.
	Color string
	// TraceURL is an http or https link to a task's trace, in which {id} is replaced by the trace ID. By default, there
	// is no link.
	TraceURL string
	// Version is the version of the program, for the OpenAPI document.
	Version string
	// Logger receives warnings and a copy of the audit. By default, nothing is logged.
	Logger *zap.Logger
}

// Console is the http.Handler of the pages and the API. Create it with New.
type Console struct {
	cfg   Config
	core  *service.Core
	users *auth.Auth // nil without a users file
	form  auth.Key
	api   *http.ServeMux
	pages *page.Pages
	cross *http.CrossOriginProtection
	ended chan struct{} // a semaphore that limits how many forms of ended sessions are read at the same time
	large chan struct{} // a semaphore that admits one large API request at a time
}

// New returns a Console and reads the users file. It returns an error if cfg is invalid or the file cannot be read.
// Until Close is called, the console updates the history of ended tasks and deletes expired audit entries in the
// background.
func New(cfg Config) (*Console, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	switch {
	case cfg.Prefix != "" && (!strings.HasPrefix(cfg.Prefix, "/") || strings.HasSuffix(cfg.Prefix, "/") || strings.Contains(cfg.Prefix, "//") || strings.ContainsAny(cfg.Prefix, " ?#%;\"\\")):
		return nil, fmt.Errorf("console: Prefix: %q; expected none, or one such as /rabbitdelay", cfg.Prefix)
	case shown.CheckTitle(cfg.Title) != nil:
		return nil, fmt.Errorf("console: Title: %w", shown.CheckTitle(cfg.Title))
	case shown.CheckColor(cfg.Color) != nil:
		return nil, fmt.Errorf("console: Color: %w", shown.CheckColor(cfg.Color))
	case shown.CheckTraceLink(cfg.TraceURL) != nil:
		return nil, fmt.Errorf("console: TraceURL: %w", shown.CheckTraceLink(cfg.TraceURL))
	case (cfg.Store == nil) != (cfg.DB == nil):
		return nil, errors.New("console: expected both Store and DB, or neither")
	case cfg.KeepAudit != 0 && cfg.KeepAudit < time.Hour:
		return nil, fmt.Errorf("console: KeepAudit: %s; expected 0 for the default, or 1h or more", topology.FormatDuration(cfg.KeepAudit))
	}
	c := &Console{cfg: cfg, form: make(auth.Key, 32), cross: http.NewCrossOriginProtection(), ended: make(chan struct{}, maxAtOnce), large: make(chan struct{}, 1)}
	_, _ = rand.Read(c.form) // never fails
	if cfg.Users != "" {
		var err error
		c.users, err = auth.New(auth.Config{
			Path: cfg.Users, Prefix: cfg.Prefix, Proxies: cfg.Proxies, Logger: cfg.Logger,
			Note: func(r *http.Request, who service.Identity, action, why string) {
				c.core.Note(r.Context(), who, change.Entry{Action: action}, why)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("users: %w", err)
		}
	}
	c.core = service.New(service.Config{
		Store: cfg.Store, DB: cfg.DB, Client: cfg.Client, Broker: cfg.Broker, Previous: cfg.Previous, Problem: cfg.Problem, Keep: cmp.Or(cfg.KeepAudit, DefaultKeepAudit), Discarded: cfg.Discarded, Logger: cfg.Logger,
	})
	mux := http.NewServeMux()
	api.Register(mux, c.core, cfg.Prefix, cfg.Version, cfg.Logger)
	c.api = mux
	c.pages = page.New(c.core, page.Options{Title: cfg.Title, Color: cfg.Color, TraceURL: cfg.TraceURL, Logger: cfg.Logger})
	return c, nil
}

// Close stops the background work, including the jobs of this process, and waits until it has ended or ctx ends.
// Another process on the same database can continue the jobs.
func (c *Console) Close(ctx context.Context) error { return c.core.Close(ctx) }

// SetUser adds a user to a users file, or changes the role and the password of an existing user. The result
// created reports which of the two happened. The password must have 10 to 72 bytes. SetUser creates a missing file.
func SetUser(file, name string, role Role, password []byte) (created bool, err error) {
	return auth.SetUser(file, name, role, password)
}

// NewToken adds a token for a program to a users file, or replaces the token with this name. The file only contains the
// token's hash, so the token cannot be shown again.
func NewToken(file, name string, role Role) (token string, err error) {
	return auth.NewToken(file, name, role)
}

// RemoveUser removes the user and the token with this name from a users file, and ends the user's sessions.
func RemoveUser(file, name string) error { return auth.Remove(file, name) }

// ErrNotRecorded is wrapped by the error of Audit.Record if the entry could not be written. In this case, nothing was
// done.
var ErrNotRecorded = service.ErrNotRecorded

// Audit records changes that are made outside of a Console, such as by a command or a script. Consoles on the same
// database show these entries together with their own, and delete them after Config.KeepAudit.
type Audit struct{ to *service.Recorder }

// NewAudit returns the audit in db, which must be the database of a schedule.Store.
func NewAudit(db *sql.DB) *Audit { return &Audit{service.NewRecorder(db)} }

// Record writes an audit entry in the name of who, for example a user and a host, calls do, and adds what do returned to
// the entry: a one-line outcome and an error. If the entry cannot be written, Record does not call do and returns an
// error that wraps ErrNotRecorded. An entry without an outcome means that the process was killed during do.
func (a *Audit) Record(ctx context.Context, who string, e change.Entry, do func(*AuditRecord) (outcome string, err error)) error {
	return a.to.Record(ctx, who, e, func(id string) (string, error) { return do(&AuditRecord{a.to, id}) })
}

// AuditRecord is an audit entry whose change is in progress.
type AuditRecord struct {
	to *service.Recorder
	id string
}

// Changed adds the changed tasks to the entry, so that the audit of each of these tasks shows it, and records the
// progress of the change. Use it as schedule.BulkOptions.Record.
func (r *AuditRecord) Changed(ctx context.Context, tx schedule.Executor, p schedule.BulkProgress, ids []any) error {
	return r.to.Changed(ctx, sqldb.On(tx), r.id, p.Changed, string(p.Place), ids)
}

// DescribeDeadLetters describes a filter in words for the detail of an audit entry, without the value of a header. The
// result is empty if the filter selects all messages.
func DescribeDeadLetters(f inspect.DeadLetterFilter) string { return service.DescribeDead(f, false) }
