package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/auth"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/page"
	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

// policy lets pages load what they are served with, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Bounds of the bodies of forms: of who is known; to log in by; and of who is not known
// any more, who gets it back, as the form of a task with a body of 1 MiB.
const (
	maxForm  = 24 << 20
	maxLogin = 64 << 10
	maxEnded = 4 << 20
)

const (
	// maxAtOnce bounds how many forms of who is not known are read at the same time,
	// and slowForm how long one may take.
	maxAtOnce = 16
	slowForm  = 3 * time.Second
	// largeBody is a request to the API of which one at a time is answered.
	largeBody = 2 << 20
)

// largeWait is how long other large requests wait for that.
var largeWait = 10 * time.Second

// ServeHTTP answers requests with the prefix or without. Everything that decides who
// may do what is here; the service asks again before it changes something.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		body := &sentBody{from: r.Body, awaited: r.Header.Get("Expect") != ""}
		r.Body = body
		defer body.drain(w)
	}
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if c.cfg.Prefix != "" && r.URL.Path == c.cfg.Prefix { // links are relative to what is below
		http.Redirect(w, r, c.cfg.Prefix+"/", http.StatusPermanentRedirect)
		return
	}
	r = c.inside(r)
	if c.local() && !LoopbackHost(r.Host) {
		refuse(w, r, http.StatusMisdirectedRequest, "without users, only requests to localhost, 127.0.0.1 and [::1] are answered")
		return
	}
	if !readable(r.URL) {
		refuse(w, r, http.StatusBadRequest, "the address has bytes that are no text; expected UTF-8 without NUL")
		return
	}
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	if clean := cleaned(r.URL.EscapedPath()); get && clean != r.URL.EscapedPath() {
		c.to(w, r, strings.TrimPrefix(clean, "/")+strings.TrimSuffix("?"+r.URL.RawQuery, "?"))
		return
	}
	if err := c.cross.Check(r); err != nil {
		refuse(w, r, http.StatusForbidden, "the request comes from another site: "+err.Error())
		return
	}
	caller, err := c.caller(r)
	if err != nil && !errors.Is(err, ErrNobody) {
		c.cfg.Logger.Warn("console: who makes a request could not be found out", zap.Error(err))
		refuse(w, r, http.StatusServiceUnavailable, "who you are could not be found out; the log says why")
		return
	}
	if stream(r) {
		var end func()
		r, end = c.watched(r, caller)
		defer end()
	}
	known := err == nil && caller.Role.May(RoleViewer)
	r = r.WithContext(service.WithCaller(r.Context(), caller))
	switch {
	case get && strings.HasPrefix(r.URL.Path, "/assets/"):
		c.pages.ServeHTTP(w, r)
	case c.users != nil && r.URL.Path == "/login":
		c.login(w, r)
	case !known:
		c.unknown(w, r)
	case changes(r) && !caller.Role.May(RoleOperator):
		c.forbidden(w, r)
	case isAPI(r):
		c.operation(w, r)
	case get:
		c.pages.ServeHTTP(w, r)
	default:
		c.posted(w, r, caller)
	}
}

// What is left of a body when its request is answered is read up to maxDrain and for
// slowDrain at most.
const (
	maxDrain  = 64 << 20
	slowDrain = 10 * time.Second
)

// sentBody is a request's body. A client that is still sending it when its connection is
// closed sees the connection reset, and not the answer.
type sentBody struct {
	from    io.Reader
	awaited bool // the client sends it only once it is asked to, by the first read
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.awaited = false
	return b.from.Read(p)
}

// Close leaves the rest to drain; the server closes what it has made itself.
func (b *sentBody) Close() error { return nil }

// drain reads what the answer did not need, before it is sent.
func (b *sentBody) drain(w http.ResponseWriter) {
	if b.awaited {
		return
	}
	// httptest's recorder has no deadlines.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(slowDrain))
	_, _ = io.CopyN(io.Discard, b.from, maxDrain)
}

// inside is the request as it is without the prefix.
func (c *Console) inside(r *http.Request) *http.Request {
	below, ok := strings.CutPrefix(r.URL.Path, c.cfg.Prefix)
	if !ok || c.cfg.Prefix == "" || below != "" && below[0] != '/' {
		return r
	}
	in := new(http.Request)
	*in = *r
	in.URL = new(url.URL)
	*in.URL = *r.URL
	in.URL.Path, in.URL.RawPath = below, strings.TrimPrefix(r.URL.RawPath, c.cfg.Prefix)
	if below == "" {
		in.URL.Path, in.URL.RawPath = "/", ""
	}
	return in
}

func (c *Console) local() bool { return c.users == nil && c.cfg.Identify == nil }

// readable reports whether an address consists of text that a database can compare.
func readable(u *url.URL) bool {
	text := func(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }
	query := u.Query()
	for name, values := range query {
		if !text(name) || slices.ContainsFunc(values, func(v string) bool { return !text(v) }) {
			return false
		}
	}
	return text(u.Path)
}

// cleaned returns an escaped path without double slashes and dots, as http.ServeMux
// wants it.
func cleaned(escaped string) string {
	clean := path.Clean("/" + escaped)
	if strings.HasSuffix(escaped, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// LoopbackHost reports whether a Host header names this machine to itself. Another name
// for its address is a page's that wants to reach it through a browser here.
func LoopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	switch strings.ToLower(strings.Trim(host, "[]")) {
	case "localhost", "127.0.0.1", "::1":
		return true
	}
	return false
}

// caller is who makes the request; ErrNobody.
func (c *Console) caller(r *http.Request) (service.Caller, error) {
	switch {
	case c.users != nil:
		if caller, ok := c.users.Caller(r); ok {
			return caller, nil
		}
		return service.Caller{Prefix: c.cfg.Prefix}, ErrNobody
	case c.cfg.Identify != nil:
		who, err := c.cfg.Identify(r)
		return service.Caller{Identity: who, FormToken: c.form.Token(who.Name), Prefix: c.cfg.Prefix}, err
	}
	who := Identity{Name: "local", Role: RoleOperator}
	return service.Caller{Identity: who, FormToken: c.form.Token(who.Name), Prefix: c.cfg.Prefix}, nil
}

func isAPI(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/api/") || r.URL.Path == "/api"
}

// changes tells whether a request changes something that others see, too: everything
// that is no look, but how pages are shown and the end of one's own session.
func changes(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return false
	case http.MethodPost:
		return r.URL.Path != "/preferences" && r.URL.Path != "/logout"
	}
	return true
}

// operation answers a request for the API.
func (c *Console) operation(w http.ResponseWriter, r *http.Request) {
	none, pattern := c.api.Handler(r)
	if pattern != "" {
		if r.ContentLength < 0 || r.ContentLength > largeBody {
			select {
			case c.large <- struct{}{}:
				defer func() { <-c.large }()
			case <-r.Context().Done():
				return
			case <-time.After(largeWait):
				w.Header().Set("Retry-After", "10")
				refuse(w, r, http.StatusServiceUnavailable, fmt.Sprintf("another request of more than %d MiB is being read; send it again later, or in parts", largeBody>>20))
				return
			}
		}
		c.api.ServeHTTP(w, r)
		return
	}
	said := unread{header: w.Header()}
	none.ServeHTTP(&said, r) // 404, or 405 and what is allowed
	why := "no such operation; /api/openapi.json lists them"
	if allowed := w.Header().Get("Allow"); allowed != "" {
		why = r.Method + " is not allowed here, but " + allowed + "; /api/openapi.json lists the operations"
	}
	refuse(w, r, said.code, why)
}

// unread takes an answer's code and headers, and lets its text go.
type unread struct {
	header http.Header
	code   int
}

func (u *unread) Header() http.Header         { return u.header }
func (u *unread) Write(p []byte) (int, error) { return len(p), nil }
func (u *unread) WriteHeader(code int)        { u.code = code }

// stream tells whether the answer to a request does not end by itself.
func stream(r *http.Request) bool {
	return slices.Contains([]string{"/live", "/live-tasks", "/api/v1/events"}, r.URL.Path)
}

// recheck is how often it is asked whether who listens may still do so.
const recheck = 5 * time.Second

// watched ends a request when who made it may make it no more: after a logout
// elsewhere, a new password, a change of role.
func (c *Console) watched(r *http.Request, who service.Caller) (*http.Request, func()) {
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		tick := time.NewTicker(recheck)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now, err := c.caller(r); err != nil || now.Identity != who.Identity {
				cancel()
			}
		}
	}()
	return r.WithContext(ctx), cancel
}

// unknown answers who is not known.
func (c *Console) unknown(w http.ResponseWriter, r *http.Request) {
	switch {
	case isAPI(r):
		w.Header().Set("WWW-Authenticate", `Bearer realm="rabbitdelay"`)
		refuse(w, r, http.StatusUnauthorized, "give a token (Authorization: Bearer …), or log in")
	case c.users != nil:
		if r.Method == http.MethodPost {
			select {
			case c.ended <- struct{}{}:
				defer func() { <-c.ended }()
				// A slow one does not hold its place; httptest's recorder has no deadlines.
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(slowForm))
			default:
				w.Header().Set("Retry-After", "5")
				refuse(w, r, http.StatusServiceUnavailable, "your session has ended, and too many forms come at once; go back, and try again")
				return
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxEnded)
		c.pages.Login(w, r, http.StatusUnauthorized, "")
	default:
		refuse(w, r, http.StatusUnauthorized, "log in first")
	}
}

// forbidden answers who may only look.
func (c *Console) forbidden(w http.ResponseWriter, r *http.Request) {
	c.core.Note(r.Context(), service.CallerOf(r.Context()).Identity, service.Entry{Action: "refused", Target: r.Method + " " + r.URL.Path, Error: service.ErrForbidden.Error()})
	if isAPI(r) {
		refuse(w, r, http.StatusForbidden, service.ErrForbidden.Error())
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	c.pages.Problem(w, r, http.StatusForbidden, "You may look, but changing something needs the role operator.")
}

// login shows the form, and begins a session.
func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		c.pages.Login(w, r, http.StatusOK, "")
		return
	}
	if !c.parse(w, r, maxLogin) {
		return
	}
	err := c.users.Login(w, r)
	switch {
	case errors.Is(err, auth.ErrMany):
		w.Header().Set("Retry-After", "60")
		c.pages.Login(w, r, http.StatusTooManyRequests, err.Error())
	case err != nil:
		c.pages.Login(w, r, http.StatusUnauthorized, err.Error())
	default:
		c.to(w, r, page.Local(r.PostFormValue("next")))
	}
}

// to leads to an address of the pages.
func (c *Console) to(w http.ResponseWriter, r *http.Request, local string) {
	http.Redirect(w, r, c.cfg.Prefix+"/"+strings.TrimPrefix(local, "./"), http.StatusSeeOther)
}

// parse reads a form of at most so many bytes.
func (c *Console) parse(w http.ResponseWriter, r *http.Request, most int64) bool {
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if err := r.ParseForm(); err != nil {
		code := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			code = http.StatusRequestEntityTooLarge
		}
		refuse(w, r, code, "the form cannot be read: "+err.Error())
		return false
	}
	return true
}

// posted answers a form, which must be one of this caller's.
func (c *Console) posted(w http.ResponseWriter, r *http.Request, caller service.Caller) {
	if !c.parse(w, r, maxForm) {
		return
	}
	if !auth.FormOK(caller, r) {
		c.pages.Problem(w, r, http.StatusForbidden, "The form is not one of this session. Load its page again.")
		return
	}
	if c.users != nil && r.URL.Path == "/logout" {
		c.users.Logout(w, r)
		c.to(w, r, "login")
		return
	}
	c.pages.ServeHTTP(w, r)
}

// refuse answers with a reason.
func refuse(w http.ResponseWriter, r *http.Request, code int, why string) {
	if !isAPI(r) {
		http.Error(w, why, code)
		return
	}
	out := struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{http.StatusText(code), code, why}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(out) //nolint:errchkjson // texts and a number; who asked may have gone
}
