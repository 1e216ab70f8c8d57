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

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/auth"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/page"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// policy is the Content-Security-Policy of all pages. It allows them to load resources only from the console itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers a request, with or without the prefix in its path. It decides what the caller may do. The service
// checks the caller's role again before it changes anything.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer drained(w, r)()
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if r.TLS != nil { // behind a proxy that terminates TLS, the proxy decides whether to set this header
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
	if c.cfg.Prefix != "" && r.URL.Path == c.cfg.Prefix { // relative links need the trailing slash
		http.Redirect(w, r, c.cfg.Prefix+"/", http.StatusPermanentRedirect)
		return
	}
	r = c.inside(r)
	if c.local() && !LoopbackHost(r.Host) {
		refuse(w, r, http.StatusMisdirectedRequest, "this console has no users, so it answers only requests to localhost, 127.0.0.1 and [::1]")
		return
	}
	if !readable(r.URL) {
		refuse(w, r, http.StatusBadRequest, "the URL contains bytes that are not text; expected UTF-8 without NUL")
		return
	}
	if isAPI(r) && dotted(r.URL.EscapedPath()) {
		refuse(w, r, http.StatusBadRequest, "a path cannot contain the id . or ..; give the id in the query, and - in the path")
		return
	}
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	if clean := cleaned(r.URL.EscapedPath()); get && clean != r.URL.EscapedPath() {
		c.redirect(w, r, strings.TrimPrefix(clean, "/")+strings.TrimSuffix("?"+r.URL.RawQuery, "?"))
		return
	}
	if err := c.cross.Check(r); err != nil {
		refuse(w, r, http.StatusForbidden, "the request comes from another site: "+err.Error())
		return
	}
	caller, err := c.caller(r)
	if refused, ok := errors.AsType[*auth.RefusedError](err); ok {
		refuse(w, r, refused.Code, refused.Reason)
		return
	}
	if err != nil && !errors.Is(err, ErrNobody) {
		c.cfg.Logger.Warn("could not identify the caller of a request to the console", zap.Error(err))
		refuse(w, r, http.StatusServiceUnavailable, "the caller could not be identified; the log has the reason")
		return
	}
	if strings.HasPrefix(r.URL.Path, "/live") || r.URL.Path == "/api/v1/events" { // the response does not end by itself
		var end func()
		r, end = c.watched(r, caller)
		defer end()
	}
	known := err == nil && caller.Role.May(service.RoleViewer)
	r = r.WithContext(service.WithCaller(r.Context(), caller))
	switch {
	case get && strings.HasPrefix(r.URL.Path, "/assets/"):
		c.pages.ServeHTTP(w, r)
	case c.hasLogin() && r.URL.Path == "/login":
		c.login(w, r)
	case !known:
		c.unknown(w, r)
	case changes(r) && !caller.Role.May(service.RoleOperator):
		c.forbidden(w, r)
	case isAPI(r):
		c.operation(w, r)
	case get:
		c.pages.ServeHTTP(w, r)
	default:
		c.posted(w, r, caller)
	}
}

// inside returns the request without the prefix in its path.
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

// dotted reports whether a segment of an escaped path is "." or "..". The router would resolve such a path, and answer
// for another path.
func dotted(escaped string) bool {
	return slices.ContainsFunc(strings.Split(escaped, "/"), func(part string) bool { return part == "." || part == ".." })
}

// cleaned returns an escaped path without double slashes and dot segments, as http.ServeMux requires it.
func cleaned(escaped string) string {
	clean := path.Clean("/" + escaped)
	if strings.HasSuffix(escaped, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// LoopbackHost reports whether a Host header is a loopback name of this machine. If other names for the same address
// were accepted, a page of another site could reach the console through a browser.
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

// caller returns the caller of the request. It returns ErrNobody if the users file does not contain the caller.
func (c *Console) caller(r *http.Request) (service.Caller, error) {
	switch {
	case c.cfg.Identify != nil:
		return c.identified(r)
	case c.users != nil:
		if caller, ok := c.users.Caller(r); ok {
			return caller, nil
		}
		return service.Caller{Prefix: c.cfg.Prefix}, ErrNobody
	}
	who := service.Identity{Name: "local", Role: service.RoleOperator}
	return service.Caller{Identity: who, FormToken: c.form.Token(who.Name), Prefix: c.cfg.Prefix}, nil
}

// identified returns the caller from a bearer token, or else from Config.Identify, which may rely on a proxy's
// authentication.
func (c *Console) identified(r *http.Request) (service.Caller, error) {
	token := c.form.Token
	if c.users != nil {
		if caller, given, ok := c.users.TokenCaller(r); ok {
			return caller, nil
		} else if given {
			return caller, ErrNobody
		}
		token = c.users.FormToken
	}
	id, err := c.cfg.Identify(r)
	if err != nil {
		return service.Caller{Prefix: c.cfg.Prefix}, err
	}
	return service.Caller{Identity: id, FormToken: token(id.Name), Prefix: c.cfg.Prefix}, nil
}

// hasLogin reports whether users log in at the console itself.
func (c *Console) hasLogin() bool { return c.users != nil && c.cfg.Identify == nil }

func isAPI(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/api/") || r.URL.Path == "/api"
}

// changes reports whether a request changes something that other users see too. This includes every request that does
// not only read, except for preferences and the logout of the caller's own session.
func changes(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return false
	case http.MethodPost:
		return r.URL.Path != "/preferences" && r.URL.Path != "/logout"
	}
	return true
}

// operation answers an API request, or explains why there is no such operation.
func (c *Console) operation(w http.ResponseWriter, r *http.Request) {
	none, pattern := c.api.Handler(r)
	if pattern != "" {
		if end, ok := c.turn(w, r); ok {
			defer end()
			c.api.ServeHTTP(w, r)
		}
		return
	}
	said := unread{header: w.Header()}
	none.ServeHTTP(&said, r) // 404, or 405 with the allowed methods
	why := "no such operation; /api/openapi.json lists them"
	if allowed := w.Header().Get("Allow"); allowed != "" {
		why = "the method " + r.Method + " is not allowed for this path; expected " + allowed + "; /api/openapi.json lists the operations"
	}
	refuse(w, r, said.code, why)
}

// unread records the status code and headers of a response, and discards its body.
type unread struct {
	header http.Header
	code   int
}

func (u *unread) Header() http.Header         { return u.header }
func (u *unread) Write(p []byte) (int, error) { return len(p), nil }
func (u *unread) WriteHeader(code int)        { u.code = code }

// recheck is the interval at which the permissions of a caller with an open event stream are checked again.
const recheck = 5 * time.Second

// watched cancels a request when its caller is no longer allowed to make it, for example after a logout in another tab,
// a change of password or a change of role.
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

// unknown answers a request of a caller who is not logged in.
func (c *Console) unknown(w http.ResponseWriter, r *http.Request) {
	switch {
	case isAPI(r):
		w.Header().Set("WWW-Authenticate", `Bearer realm="rabbitdelay"`)
		refuse(w, r, http.StatusUnauthorized, "expected a token (Authorization: Bearer …); give one, or log in")
	case c.hasLogin():
		if r.Method == http.MethodPost {
			select {
			case c.ended <- struct{}{}:
				defer func() { <-c.ended }()
				// Deadlines are not supported by httptest's recorder.
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(slowForm))
			default:
				w.Header().Set("Retry-After", "5")
				refuse(w, r, http.StatusServiceUnavailable, "your session has ended, and too many such forms arrived at the same time; go back and try again")
				return
			}
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxEnded)
		c.pages.Login(w, r, http.StatusUnauthorized, "")
	default:
		refuse(w, r, http.StatusUnauthorized, "log in first")
	}
}

// forbidden answers a viewer's request to change something, and records it in the audit.
func (c *Console) forbidden(w http.ResponseWriter, r *http.Request) {
	c.core.Note(r.Context(), service.CallerOf(r.Context()).Identity, change.Entry{Action: "refused", Target: r.Method + " " + r.URL.Path}, service.ErrForbidden.Error())
	if isAPI(r) {
		refuse(w, r, http.StatusForbidden, service.ErrForbidden.Error())
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	c.pages.Problem(w, r, http.StatusForbidden, "Your role is viewer. Only operators can make changes.")
}

// login shows the login form or starts a session.
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
		c.redirect(w, r, page.Local(r.PostFormValue("next")))
	}
}

// redirect redirects to a path within the console.
func (c *Console) redirect(w http.ResponseWriter, r *http.Request, local string) {
	http.Redirect(w, r, c.cfg.Prefix+"/"+strings.TrimPrefix(local, "./"), http.StatusSeeOther)
}

// posted answers a submitted form, which must contain the caller's CSRF token.
func (c *Console) posted(w http.ResponseWriter, r *http.Request, caller service.Caller) {
	if !c.parse(w, r, maxForm) {
		return
	}
	if !auth.FormOK(caller, r) {
		c.pages.Problem(w, r, http.StatusForbidden, "The form does not belong to this session. Load its page again.")
		return
	}
	if c.hasLogin() && r.URL.Path == "/logout" {
		c.users.Logout(w, r)
		c.redirect(w, r, "login")
		return
	}
	c.pages.ServeHTTP(w, r)
}

// refuse answers with a status code and a reason.
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
	_ = json.NewEncoder(w).Encode(out) //nolint:errchkjson // texts and a number; the client may be gone
}

// Maximum sizes of the bodies of forms.
const (
	maxForm  = 24 << 20
	maxLogin = 64 << 10
	maxEnded = 4 << 20 // the form of an ended session, which is shown again after the login; enough for a task with a body of 1 MiB
)

const (
	maxAtOnce = 16              // forms of ended sessions that are read at the same time
	slowForm  = 3 * time.Second // the timeout for reading one of them
	largeBody = 2 << 20         // only one API request above this size is answered at a time

	// largeWait is how long another large request waits for its turn.
	largeWait = 10 * time.Second
)

// turn admits small requests immediately, and a large request when no other large one is being answered. If ok is
// false, turn has refused the request, or its client has gone away.
func (c *Console) turn(w http.ResponseWriter, r *http.Request) (end func(), ok bool) {
	if r.ContentLength >= 0 && r.ContentLength <= largeBody {
		return func() {}, true
	}
	select {
	case c.large <- struct{}{}:
		return func() { <-c.large }, true
	case <-r.Context().Done():
	case <-time.After(largeWait):
		w.Header().Set("Retry-After", "10")
		refuse(w, r, http.StatusServiceUnavailable, fmt.Sprintf("another request of more than %d MiB is being read; send this request again later, or split it into smaller ones", largeBody>>20))
	}
	return nil, false
}

// parse reads a form of at most the given number of bytes. If it returns false, it has refused the request.
func (c *Console) parse(w http.ResponseWriter, r *http.Request, most int64) bool {
	r.Body = http.MaxBytesReader(w, r.Body, most)
	if err := r.ParseForm(); err != nil {
		code := http.StatusBadRequest
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			code = http.StatusRequestEntityTooLarge
		}
		refuse(w, r, code, "cannot read the form: "+err.Error())
		return false
	}
	return true
}

// Limits for reading the rest of a body after its request was answered.
const (
	maxDrain  = 64 << 20
	slowDrain = 10 * time.Second
)

// drained replaces the body of r, and returns a function that reads the rest of the body after the handler returns.
func drained(w http.ResponseWriter, r *http.Request) func() {
	if r.Body == nil || r.Body == http.NoBody {
		return func() {}
	}
	body := &sentBody{from: r.Body, awaited: r.Header.Get("Expect") != ""}
	r.Body = body
	return func() { // reads the part of the body that the handler did not need, before the response is sent
		if body.awaited {
			return
		}
		// Deadlines are not supported by httptest's recorder.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(slowDrain))
		_, _ = io.CopyN(io.Discard, body.from, maxDrain)
	}
}

// sentBody is a request's body whose rest is read after the handler returns. Without this, the server would close the
// connection, and a client that is still sending would get a connection reset instead of the response.
type sentBody struct {
	from    io.Reader
	awaited bool // the client waits for the first read before it sends the body
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.awaited = false
	return b.from.Read(p)
}

// Close does nothing, because the function that drained returns reads the rest, and the server closes its own body.
func (b *sentBody) Close() error { return nil }
