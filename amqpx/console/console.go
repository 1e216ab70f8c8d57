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
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Identity is who makes a request, and what that may do.
type Identity = service.Identity

// Role is what somebody may do.
type Role = service.Role

// The roles. A viewer looks, without bodies of messages and most values of headers;
// an operator sees all, and changes things.
const (
	RoleViewer   = service.RoleViewer
	RoleOperator = service.RoleOperator
)

// ErrNobody is what Identify returns for a request of nobody who is known: it is
// answered with 401. Any other error of Identify is answered with 503, and logged.
var ErrNobody = errors.New("nobody is logged in")

// DefaultKeepAudit is Config.KeepAudit unless it is set.
const DefaultKeepAudit = 90 * 24 * time.Hour

// Config is what a Console works on, and who may. Where a part is missing, what needs
// it says so.
type Config struct {
	// Store and its database have the tasks. The audit and the jobs are there too;
	// without a database they are in memory.
	Store *schedule.Store
	DB    *sql.DB
	// Client is asked for the client that requeues messages, which may have no
	// connection yet.
	Client func() (*amqpx.Client, error)
	// Look says how broker and tasks are looked at. Its Tasks and Peek are not used.
	Look func(ctx context.Context) (status.Source, error)
	// Previous are the earlier layouts that may be retired.
	Previous func(ctx context.Context) (topology.Topology, error)
	// Problem tells what keeps the process from working, for the first page.
	Problem func() error

	// Prefix stands before all paths outside, such as /rabbitdelay; empty for none.
	// Requests may come with it or, from a proxy that strips it, without.
	Prefix string
	// Identify tells who makes a request, for an application with a login of its own.
	Identify func(r *http.Request) (Identity, error)
	// FormKey signs the tokens in forms, for Identify. Processes that share the
	// requests of a user need the same; default: one of each process.
	FormKey []byte
	// Users is the file of users and tokens, which SetUser and NewToken write, instead
	// of Identify. It is read again when it changes. With neither, everybody is an
	// operator, and only requests to localhost, 127.0.0.1 and [::1] are answered.
	Users string
	// Proxy is the network of proxies whose X-Forwarded-For is believed, by which
	// failed logins are counted.
	Proxy netip.Prefix

	// KeepAudit is how long the entries of the audit and the jobs are kept; default
	// DefaultKeepAudit, at least an hour.
	KeepAudit time.Duration

	// Title stands at the top of every page, so that two consoles can be told apart;
	// default "rabbitdelay".
	Title string
	// TraceURL is a link to a task's trace, in which {id} stands for the trace id;
	// empty for no link.
	TraceURL string
	// Version of the program, for the API's document.
	Version string
	// Logger gets the audit too; nil is silent.
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
	ended chan struct{} // has room for the forms of ended sessions that are being read
	large chan struct{} // has room for one large request
}

// New makes a console. It reads the file of users; until Close it deletes old entries
// of the audit in the background.
func New(cfg Config) (*Console, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	switch {
	case cfg.Prefix != "" && (!strings.HasPrefix(cfg.Prefix, "/") || strings.HasSuffix(cfg.Prefix, "/") || strings.Contains(cfg.Prefix, "//") || strings.ContainsAny(cfg.Prefix, " ?#%;\"\\")):
		return nil, fmt.Errorf("console: Prefix: %q; expected none, or one such as /rabbitdelay", cfg.Prefix)
	case cfg.Identify != nil && cfg.Users != "":
		return nil, errors.New("console: both Identify and Users; give one")
	case (cfg.Store == nil) != (cfg.DB == nil):
		return nil, errors.New("console: Store and DB belong together; give both, or neither")
	case cfg.KeepAudit != 0 && cfg.KeepAudit < time.Hour:
		return nil, fmt.Errorf("console: KeepAudit: %v; expected 0 for the default, or 1h or more", cfg.KeepAudit)
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
			Note: func(r *http.Request, who Identity, action, why string) {
				c.core.Note(r.Context(), who, service.Entry{Action: action, Error: why})
			},
		})
		if err != nil {
			return nil, fmt.Errorf("users: %w", err)
		}
	}
	c.core = service.New(service.Config{
		Store: cfg.Store, DB: cfg.DB, Client: cfg.Client, Look: cfg.Look, Previous: cfg.Previous, Problem: cfg.Problem, Keep: cmp.Or(cfg.KeepAudit, DefaultKeepAudit), Logger: cfg.Logger,
	})
	mux := http.NewServeMux()
	api.Register(mux, c.core, cfg.Prefix, cfg.Version, cfg.Logger)
	c.api = mux
	c.pages = page.New(c.core, page.Options{Title: cfg.Title, TraceURL: cfg.TraceURL, Logger: cfg.Logger})
	return c, nil
}

// Close ends the jobs that run here, which another process can continue, and what runs
// in the background, and waits for them until ctx ends.
func (c *Console) Close(ctx context.Context) error { return c.core.Close(ctx) }

// SetUser adds a user to a file of users, or changes one that is there; created tells
// which. The password has 10 to 72 bytes.
func SetUser(file, name string, role Role, password []byte) (created bool, err error) {
	return auth.SetUser(file, name, role, password)
}

// NewToken adds a token for a program to a file of users, or replaces the one of that
// name. The file has only its hash, so nobody can see it again.
func NewToken(file, name string, role Role) (token string, err error) {
	return auth.NewToken(file, name, role)
}

// RemoveUser takes the user and the token of a name out of a file of users. Their
// sessions end.
func RemoveUser(file, name string) error { return auth.Remove(file, name) }
