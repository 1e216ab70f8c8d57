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
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/api"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/auth"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/page"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Identity is the name and role of whoever makes a request.
type Identity struct {
	Name string
	Role Role
}

// Role is what a caller may do.
type Role string

// The roles. A viewer sees everything but the bodies of messages and most values of headers;
// an operator sees everything and changes things.
const (
	RoleViewer   = Role(service.RoleViewer)
	RoleOperator = Role(service.RoleOperator)
)

// ErrNobody is what Identify returns for a request of an unknown caller. It is answered with
// 401; any other error of Identify is logged and answered with 503.
var ErrNobody = errors.New("nobody is logged in")

// DefaultKeepAudit is the default of Config.KeepAudit.
const DefaultKeepAudit = 90 * 24 * time.Hour

// Config is what a Console works on, and for whom. Each part may be missing; what needs it
// then reports that.
type Config struct {
	// Store has the tasks, and DB is its database, which also keeps the audit and the jobs.
	// Without a database these are in memory.
	Store *schedule.Store
	DB    *sql.DB
	// Client returns the client that requeues messages, which need not be connected yet.
	Client func() (*amqpx.Client, error)
	// Look returns how to look at the broker. Source.Tasks and Source.Peek are not used.
	Look func(ctx context.Context) (status.Source, error)
	// Previous returns the earlier layouts that may be retired.
	Previous func(ctx context.Context) (topology.Topology, error)
	// Problem returns what keeps the process from working, for the first page.
	Problem func() error

	// Prefix comes before all paths, such as /rabbitdelay; empty for none. Requests may come
	// with it or, from a proxy that strips it, without it.
	Prefix string
	// Identify returns who makes a request, in an application with a login of its own.
	Identify func(r *http.Request) (Identity, error)
	// FormKey signs the tokens in forms if Identify is set. Processes that share the requests
	// of a user need the same key; by default each process makes its own.
	FormKey []byte
	// Users is the file of users and tokens, written by SetUser and NewToken, instead of
	// Identify. It is read again when it changes. With neither, everybody is an operator,
	// and only requests to localhost, 127.0.0.1 and [::1] are answered.
	Users string
	// Proxy is the network of proxies whose X-Forwarded-For is trusted. Failed logins are
	// counted by that address.
	Proxy netip.Prefix

	// KeepAudit is how long audit entries and jobs are kept; default DefaultKeepAudit, at
	// least an hour.
	KeepAudit time.Duration

	// Discarded is the directory in which discards keep the messages that they remove, a file
	// for each job, which only its owner may read; empty for no discards. Nothing deletes the
	// files.
	Discarded string

	// Title stands at the top of every page, so that two consoles can be told apart: one
	// line of at most 40 characters; default "rabbitdelay".
	Title string
	// Color is that of a line above all pages, such as #c62828; empty for none.
	Color string
	// TraceURL is a link to a task's trace, http or https, in which {id} stands for the
	// trace id; empty for no link.
	TraceURL string
	// Version is that of the program, for the OpenAPI document.
	Version string
	// Logger also gets the audit; nil is silent.
	Logger *zap.Logger
}

// Console is the handler of pages and API.
type Console struct {
	cfg   Config
	core  *service.Core
	users *auth.Auth // nil without a file
	form  auth.Key
	api   *http.ServeMux
	pages *page.Pages
	cross *http.CrossOriginProtection
	ended chan struct{} // a place for each form of an ended session that is being read
	large chan struct{} // a place for one large request
}

// New makes a console and reads the file of users. Until Close, it deletes old entries of the
// audit in the background.
func New(cfg Config) (*Console, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	switch {
	case cfg.Prefix != "" && (!strings.HasPrefix(cfg.Prefix, "/") || strings.HasSuffix(cfg.Prefix, "/") || strings.Contains(cfg.Prefix, "//") || strings.ContainsAny(cfg.Prefix, " ?#%;\"\\")):
		return nil, fmt.Errorf("console: Prefix: %q; expected none, or one such as /rabbitdelay", cfg.Prefix)
	case cfg.Identify != nil && cfg.Users != "":
		return nil, errors.New("console: both Identify and Users; give one")
	case shown.CheckTitle(cfg.Title) != nil:
		return nil, fmt.Errorf("console: Title: %w", shown.CheckTitle(cfg.Title))
	case shown.CheckColor(cfg.Color) != nil:
		return nil, fmt.Errorf("console: Color: %w", shown.CheckColor(cfg.Color))
	case shown.CheckTraceLink(cfg.TraceURL) != nil:
		return nil, fmt.Errorf("console: TraceURL: %w", shown.CheckTraceLink(cfg.TraceURL))
	case (cfg.Store == nil) != (cfg.DB == nil):
		return nil, errors.New("console: Store and DB belong together; give both, or neither")
	case cfg.KeepAudit != 0 && cfg.KeepAudit < time.Hour:
		return nil, fmt.Errorf("console: KeepAudit: %s; expected 0 for the default, or 1h or more", topology.FormatDuration(cfg.KeepAudit))
	}
	c := &Console{cfg: cfg, form: cfg.FormKey, cross: http.NewCrossOriginProtection(), ended: make(chan struct{}, maxAtOnce), large: make(chan struct{}, 1)}
	if len(c.form) == 0 {
		c.form = make([]byte, 32)
		_, _ = rand.Read(c.form) // never fails
	}
	if cfg.Users != "" {
		var err error
		c.users, err = auth.New(auth.Config{
			Path: cfg.Users, Prefix: cfg.Prefix, Proxy: cfg.Proxy, Logger: cfg.Logger,
			Note: func(r *http.Request, who service.Identity, action, why string) {
				c.core.Note(r.Context(), who, service.Entry{Action: action, Error: why})
			},
		})
		if err != nil {
			return nil, fmt.Errorf("users: %w", err)
		}
	}
	c.core = service.New(service.Config{
		Store: cfg.Store, DB: cfg.DB, Client: cfg.Client, Look: cfg.Look, Previous: cfg.Previous, Problem: cfg.Problem, Keep: cmp.Or(cfg.KeepAudit, DefaultKeepAudit), Discarded: cfg.Discarded, Logger: cfg.Logger,
	})
	mux := http.NewServeMux()
	api.Register(mux, c.core, cfg.Prefix, cfg.Version, cfg.Logger)
	c.api = mux
	c.pages = page.New(c.core, page.Options{Title: cfg.Title, Color: cfg.Color, TraceURL: cfg.TraceURL, Logger: cfg.Logger})
	return c, nil
}

// Close ends what runs in the background, with the jobs of this process, which another process
// can continue. It waits for them until ctx ends.
func (c *Console) Close(ctx context.Context) error { return c.core.Close(ctx) }

// SetUser adds a user to a file of users, or changes role and password of an existing one;
// created reports which. The password has 10 to 72 bytes.
func SetUser(file, name string, role Role, password []byte) (created bool, err error) {
	return auth.SetUser(file, name, service.Role(role), password)
}

// NewToken adds a token for a program to a file of users, or replaces the one of that name. The
// file has only its hash, so it cannot be shown again.
func NewToken(file, name string, role Role) (token string, err error) {
	return auth.NewToken(file, name, service.Role(role))
}

// RemoveUser removes the user and the token of a name from a file of users. Their sessions end.
func RemoveUser(file, name string) error { return auth.Remove(file, name) }

// ErrNotRecorded is wrapped by errors of Audit.Record that come before anything is done.
var ErrNotRecorded = service.ErrNotRecorded

// Audit records who did what outside of a Console, such as by a command or a script. Consoles
// on the same database show it with what they record themselves, and delete it after
// Config.KeepAudit.
type Audit struct{ to *service.Recorder }

// NewAudit returns the audit in the database of a schedule.Store.
func NewAudit(db *sql.DB) *Audit { return &Audit{service.NewRecorder(db)} }

// AuditEntry is what is about to be done.
type AuditEntry struct {
	Who    string // such as a user and a host; up to 255 bytes
	Action string // such as requeue; up to 64 bytes
	Target string // a queue, a name; empty for a filter
	Detail string // such as the filter; without bodies and values of headers, which viewers may not see
}

// Record records an entry, calls do, and adds to the entry what do returns: the outcome, in a
// line, and an error. If the entry cannot be written, nothing is done, and the error wraps
// ErrNotRecorded. An entry without an outcome is one of a process that was killed.
func (a *Audit) Record(ctx context.Context, e AuditEntry, do func(*AuditRecord) (outcome string, err error)) error {
	return a.to.Record(ctx, e.Who, service.Entry{Action: e.Action, Target: e.Target, Detail: e.Detail}, func(id string) (string, error) {
		return do(&AuditRecord{a.to, id})
	})
}

// AuditRecord is an entry whose change is under way.
type AuditRecord struct {
	to *service.Recorder
	id string
}

// Changed adds tasks that were changed to the entry, so that it is among those of each task, and how
// far the change has come. It is a schedule.BulkOptions.Record.
func (r *AuditRecord) Changed(ctx context.Context, tx schedule.Executor, p schedule.BulkProgress, ids []any) error {
	return r.to.Changed(ctx, sqldb.On(tx), r.id, p.Changed, p.Place.String(), ids)
}

// DescribeDeadLetters returns a filter in words for AuditEntry.Detail, without the value of a
// header; empty for all.
func DescribeDeadLetters(f inspect.DeadLetterFilter) string { return service.DescribeDead(f, false) }

// DescribeTasks returns a filter in words for AuditEntry.Detail, without the value of a header;
// "all" for all.
func DescribeTasks(f schedule.Filter) string { return service.DescribeTasks(f, false) }
