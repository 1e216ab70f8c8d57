package console

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/auth"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

const password = "correct horse battery"

// withUsers writes a users file with the viewer vera and the operator otto.
func withUsers(t *testing.T) (file string, configure func(*Config)) {
	t.Helper()
	folder := t.TempDir()
	check(t, os.Chmod(folder, 0o700)) // its group cannot write to it, whatever the umask is
	file = filepath.Join(folder, "users.yaml")
	for name, role := range map[string]Role{"vera": RoleViewer, "otto": RoleOperator} {
		_, err := SetUser(file, name, role, []byte(password))
		check(t, err)
	}
	cheapen(t, file)
	return file, func(c *Config) { c.Users = file }
}

// cheapen replaces the password hashes of all users in a file with a cheap one, because checking the real ones takes
// seconds with the race detector.
func cheapen(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	check(t, err)
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	check(t, err)
	check(t, os.WriteFile(file, regexp.MustCompile(`\$2a\$12\$[./A-Za-z0-9]{53}`).ReplaceAllLiteral(text, hash), 0o600))
}

// browser has the cookies of a session.
type browser struct {
	w       *world
	cookies []*http.Cookie
}

func (w *world) login(name, password string) (*browser, reply) {
	w.t.Helper()
	r := w.post("/login", url.Values{"name": {name}, "password": {password}, "next": {"tasks?status=failed"}}, nil)
	return &browser{w, (&http.Response{Header: r.header}).Cookies()}, r
}

func (b *browser) with(r *http.Request) {
	if b == nil {
		return
	}
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
}

func (w *world) post(path string, form url.Values, b *browser, edits ...func(*http.Request)) reply {
	w.t.Helper()
	return w.ask("POST", path, form.Encode(), append([]func(*http.Request){b.with, func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}}, edits...)...)
}

var tokenField = regexp.MustCompile(`name="` + service.FormTokenField + `"\s+value="([^"]+)"`)

// token returns the session's form token.
func (b *browser) token() string {
	b.w.t.Helper()
	m := tokenField.FindSubmatch(b.w.ask("GET", "/task-new", "", b.with).text)
	if m == nil {
		m = tokenField.FindSubmatch(b.w.ask("GET", "/", "", b.with).text)
	}
	if m == nil {
		b.w.t.Fatal("the page contains no form with a token, want one")
	}
	return string(m[1])
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// state returns everything that a request could change.
func (w *world) state() string {
	w.t.Helper()
	var b strings.Builder
	for t, err := range w.store.List(w.t.Context(), schedule.NoTx, schedule.Filter{}) {
		check(w.t, err)
		fmt.Fprintf(&b, "%s %d %s %d\n", t.ID, t.DeliverAt.UnixMilli(), t.Status, t.Version)
	}
	for r, err := range w.store.Recurring().List(w.t.Context(), schedule.NoTx) {
		check(w.t, err)
		fmt.Fprintf(&b, "%s %d %v\n", r.Name, r.Version, r.Paused)
	}
	client, err := w.cfg.Client()
	check(w.t, err)
	info, err := client.QueueInfo(w.t.Context(), "orders.dead")
	check(w.t, err)
	jobs, err := w.c.core.Jobs(w.t.Context(), service.Identity{}, 100)
	check(w.t, err)
	fmt.Fprintf(&b, "%d dead, %d jobs\n", info.Ready, len(jobs))
	return b.String()
}

// forms lists the paths of the forms that change something.
var forms = []string{
	"task-cancel", "task-reschedule", "task-run", "task-revive", "task-new", "bulk", "job-stop", "job-continue",
	"recurring-edit", "recurring-pause", "recurring-resume", "recurring-run", "recurring-delete", "requeue", "discard", "retire",
	"destination-pause", "destination-resume", "destination-rate-limit",
}

// discarded is the operation that returns bodies, which a viewer may not read.
const discarded = "GET /api/v1/jobs/{id}/messages"

// No change succeeds for a viewer or an unknown caller, by any route, and neither sees a body or a secret header value.
func TestActionsByRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, users := withUsers(t)
		w := newWorld(t, users)
		w.lay()
		check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{
			ID: "a", Queue: "orders", DeliverAt: time.Now().Add(time.Hour), Body: []byte("secret body"), Headers: map[string]string{"api-key": "secret key"},
		}))
		nightly := schedule.Recurring{Name: "nightly", Every: time.Hour, Task: schedule.Task{Queue: "orders", Body: []byte("secret body")}}
		_, err := w.store.Recurring().Put(t.Context(), schedule.NoTx, nightly)
		check(t, err)
		viewing, err := NewToken(file, "grafana", RoleViewer)
		check(t, err)
		operating, err := NewToken(file, "shop", RoleOperator)
		check(t, err)
		<-time.After(1100 * time.Millisecond) // the file is read again
		vera, _ := w.login("vera", password)
		before, calls := w.state(), w.calls(bearer(operating))
		for name, who := range map[string]func(*http.Request){
			"nobody": func(*http.Request) {}, "a viewer's session": vera.with, "a viewer's token": bearer(viewing), "a wrong token": bearer("rdt_wrong"),
		} {
			nobody := name == "nobody" || name == "a wrong token"
			for _, c := range calls {
				if c.op == "GET /api/v1/events" && !nobody {
					continue
				}
				method, path, body := c.method, c.path, ""
				if method != "GET" {
					body = "{}"
				}
				r := w.ask(method, path, body, who)
				switch {
				case nobody && (r.code != 401 || r.header.Get("WWW-Authenticate") == "" || r.header.Get("Content-Type") != "application/problem+json"):
					t.Errorf("%s: %s %s: got %d %s, want 401 with a challenge and a problem as JSON", name, method, path, r.code, r.text)
				case !nobody && method != "GET" && r.code != 403:
					t.Errorf("%s: %s %s: got %d %s, want 403", name, method, path, r.code, r.text)
				case !nobody && c.op == discarded:
					if r.code != 403 {
						t.Errorf("%s: %s %s: got %d %s, want 403", name, method, path, r.code, r.text)
					}
				case !nobody && method == "GET" && (r.code == 401 || r.code == 403):
					t.Errorf("%s: %s %s: got %d %s, want a code other than 401 and 403", name, method, path, r.code, r.text)
				}
				if strings.Contains(string(r.text), "secret") {
					t.Errorf("%s: %s %s: got %s, want no \"secret\" in it", name, method, path, r.text)
				}
			}
			for _, path := range forms {
				for _, id := range []string{"a", "nightly", "orders.dead"} {
					form := url.Values{
						"id": {id}, "name": {id}, "queue": {"orders.dead"}, "count": {"10"}, "limit": {"10"}, "action": {"cancel"},
						"status": {"pending"}, "due": {"1h"}, "to": {"1h"}, "confirm": {"yes"},
					}
					if r := w.post("/"+path, form, nil, who); r.code != 401 && r.code != 403 {
						t.Errorf("%s: POST /%s: got %d %.200s, want 401 or 403", name, path, r.code, r.text)
					}
					form.Set("token", "x")
					if r := w.post("/"+path+"?"+form.Encode(), form, nil, who); r.code != 401 && r.code != 403 {
						t.Errorf("%s: POST /%s with a token: got %d %.200s, want 401 or 403", name, path, r.code, r.text)
					}
				}
			}
			for _, path := range []string{"/", "/tasks", "/task?id=a", "/recurring", "/recurring-task?name=nightly", "/dead",
				"/dead-queue?queue=orders.dead", "/dead-errors?queue=orders.dead", "/audit", "/layouts", "/held"} {
				r := w.ask("GET", path, "", who)
				if (r.code == 401) != nobody {
					t.Errorf("%s: GET %s: got %d, want 401 only without a login", name, path, r.code)
				}
				for _, secret := range []string{"secret body", "secret key"} {
					if strings.Contains(string(r.text), secret) {
						t.Errorf("%s: GET %s contains the %s, want it hidden", name, path, secret)
					}
				}
			}
			for _, method := range []string{"PATCH", "TRACE", "OPTIONS", "get", "X"} {
				if r := w.ask(method, "/api/v1/tasks/a/cancel", "", who); r.code < 400 {
					t.Errorf("%s: %s: got %d %s, want at least 400", name, method, r.code, r.text)
				}
			}
			if after := w.state(); after != before {
				t.Fatalf("after the requests of %s, the tasks are\n%s\nwant\n%s", name, after, before)
			}
		}
		w.must(403, "GET", "/api/v1/tasks?header=api-key%3Dsecret", "", bearer(viewing))
		w.must(403, "GET", "/api/v1/counts?header=api-key%3Dsecret", "", bearer(viewing))
		if task := w.must(200, "GET", "/api/v1/tasks/a", "", bearer(operating))["task"].(map[string]any); task["body"] != "secret body" {
			t.Errorf(`the task as an operator: got %v, want body = "secret body"`, task)
		}
		w.must(200, "POST", "/api/v1/tasks/a/cancel", "", bearer(operating))
		entries, err := w.c.core.Audit(t.Context(), service.Identity{}, "a", "", 10)
		check(t, err)
		if len(entries) != 1 || entries[0].Who != "token shop" || entries[0].Action != "task.cancel" {
			t.Errorf(`the audit log: got %+v, want one entry with Who = "token shop" and Action = "task.cancel"`, entries)
		}
	})
}

// The service itself refuses changes by viewers, independently of the HTTP handlers.
func TestServiceRefusesViewers(t *testing.T) {
	w := newWorld(t)
	check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "a", Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}))
	c, ctx := w.c.core, t.Context()
	for _, who := range []service.Identity{{}, {Name: "vera", Role: service.RoleViewer}, {Name: "x", Role: "admin"}} {
		for what, do := range map[string]func() error{
			"schedule": func() error { _, err := c.Schedule(ctx, who, []service.NewTask{{}}); return err },
			"cancel":   func() error { _, err := c.Change(ctx, who, "a", change.Action{Kind: change.Cancel}); return err },
			"move": func() error {
				_, err := c.Change(ctx, who, "a", change.Action{Kind: change.Reschedule, At: time.Now()})
				return err
			},
			"run":    func() error { _, err := c.Change(ctx, who, "a", change.Action{Kind: change.RunNow}); return err },
			"revive": func() error { _, err := c.Change(ctx, who, "a", change.Action{Kind: change.Revive}); return err },
			"bulk": func() error {
				_, err := c.Bulk(ctx, who, schedule.Filter{}, change.Action{Kind: change.Cancel}, 1)
				return err
			},
			"put":     func() error { _, err := c.PutRecurring(ctx, who, schedule.Recurring{Name: "x"}); return err },
			"pause":   func() error { return c.PauseRecurring(ctx, who, "x") },
			"resume":  func() error { return c.ResumeRecurring(ctx, who, "x") },
			"runR":    func() error { _, err := c.RunRecurring(ctx, who, "x"); return err },
			"delete":  func() error { return c.DeleteRecurring(ctx, who, "x") },
			"dry run": func() error { _, err := c.RequeueDryRun(ctx, who, service.Requeue{Queue: "orders.dead"}); return err },
			"requeue": func() error {
				_, err := c.Requeue(ctx, who, service.Requeue{Queue: "orders.dead", Limit: 1})
				return err
			},
			"retire":   func() error { _, err := c.Retire(ctx, who); return err },
			"stop":     func() error { _, err := c.StopJob(ctx, who, "x"); return err },
			"continue": func() error { _, err := c.ContinueJob(ctx, who, "x"); return err },
		} {
			if err := do(); !errors.Is(err, service.ErrForbidden) {
				t.Errorf("%s with the role %q: got error %v, want service.ErrForbidden", what, who.Role, err)
			}
		}
	}
}

// Sessions end when the user's password or role changes, or when the user is removed.
func TestSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, users := withUsers(t)
		w := newWorld(t, users)
		look := func(b *browser) int { return w.ask("GET", "/api/v1/counts", "", b.with).code }
		for name, end := range map[string]func(){
			"the password": func() { _, err := SetUser(file, "vera", RoleViewer, []byte("another password")); check(t, err) },
			"the role":     func() { _, err := SetUser(file, "vera", RoleOperator, []byte(password)); check(t, err) },
			"the user":     func() { check(t, RemoveUser(file, "vera")) },
		} {
			_, err := SetUser(file, "vera", RoleViewer, []byte(password))
			check(t, err)
			<-time.After(1100 * time.Millisecond) // the file is read again
			vera, r := w.login("vera", password)
			if r.code != 303 || r.header.Get("Location") != "/tasks?status=failed" || look(vera) != 200 {
				t.Fatalf("%s: login: got %d %v, then %d, want 303 to /tasks?status=failed, then 200", name, r.code, r.header, look(vera))
			}
			end()
			<-time.After(1100 * time.Millisecond)
			if code := look(vera); code != 401 {
				t.Errorf("after a change of %s: got %d, want 401", name, code)
			}
		}
		otto, r := w.login("otto", password)
		c := otto.cookies[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.MaxAge != 12*3600 {
			t.Errorf("cookie: got %v, want HttpOnly = true, SameSite = http.SameSiteStrictMode, Secure = false and MaxAge = %v",
				r.header["Set-Cookie"], 12*3600)
		}
		if got := w.post("/logout", url.Values{"token": {otto.token()}}, otto); got.code != 303 || !strings.Contains(got.header.Get("Set-Cookie"), "Max-Age=0") {
			t.Errorf("logout: got %d %v, want 303 and a Set-Cookie with Max-Age=0", got.code, got.header)
		}
		if code := look(otto); code != 401 {
			t.Errorf("a copy of the cookie after the logout: got %d, want 401", code)
		}
		otto, _ = w.login("otto", password)
		c = otto.cookies[0]
		forged := *c
		forged.Value = strings.Replace(c.Value, ".", "0.", 1) // a later end of the session
		if code := look(&browser{w, []*http.Cookie{&forged}}); code != 401 {
			t.Errorf("a forged session: got %d, want 401", code)
		}
		// If the file can no longer be read, sessions continue.
		check(t, os.WriteFile(file, []byte("users: ["), 0o600))
		<-time.After(1100 * time.Millisecond)
		if code := look(otto); code != 200 {
			t.Errorf("after a broken file: got %d, want 200", code)
		}
		secure := w.post("/login", url.Values{"name": {"otto"}, "password": {password}}, nil, func(r *http.Request) { r.Header.Set("X-Forwarded-Proto", "https") })
		if got := secure.header.Get("Set-Cookie"); !strings.HasPrefix(got, "__Host-rabbitdelay_session=") || !strings.Contains(got, "Secure") {
			t.Errorf(`login over https: got %v, want a cookie that begins with "__Host-rabbitdelay_session=" and contains "Secure"`, secure.header)
		}
		https := func(r *http.Request) { r.Header.Set("X-Forwarded-Proto", "https") }
		over := &browser{w, (&http.Response{Header: secure.header}).Cookies()}
		if code := w.ask("GET", "/api/v1/tasks", "", over.with, https).code; code != 200 {
			t.Errorf("the session over https: got %d, want 200", code)
		}
		if code := w.ask("GET", "/api/v1/tasks", "", otto.with, https).code; code != 401 {
			t.Errorf("over https, a cookie that was set without https: got %d, want 401", code)
		}
	})
}

// A console with its own TLS sends Strict-Transport-Security, so that browsers use only https from then on.
func TestTransportSecurity(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*http.Request){
		"":                 func(*http.Request) {},
		"max-age=31536000": func(r *http.Request) { r.TLS = &tls.ConnectionState{} },
	} {
		r, answer := httptest.NewRequestWithContext(t.Context(), "GET", "http://localhost/", nil), httptest.NewRecorder()
		change(r)
		w.c.ServeHTTP(answer, r)
		if got := answer.Header().Get("Strict-Transport-Security"); got != name {
			t.Errorf("got Strict-Transport-Security %q, want %q", got, name)
		}
	}
}

// A form from another site, or from another session, changes nothing.
func TestForgedForms(t *testing.T) {
	_, users := withUsers(t)
	w := newWorld(t, users)
	check(t, w.store.Schedule(t.Context(), schedule.NoTx, schedule.Task{ID: "a", Queue: "orders", DeliverAt: time.Now().Add(time.Hour)}))
	otto, _ := w.login("otto", password)
	token := otto.token()
	form := url.Values{"id": {"a"}, "token": {token}}
	for name, change := range map[string]func(*http.Request){
		"Sec-Fetch-Site": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"Origin":         func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") },
		"same site":      func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
	} {
		for _, path := range []string{"/task-cancel", "/api/v1/tasks/a/cancel"} {
			if r := w.post(path, form, otto, change); r.code != 403 {
				t.Errorf("%s: %s: got %d %.200s, want 403", name, path, r.code, r.text)
			}
		}
		if r := w.post("/login", url.Values{"name": {"otto"}, "password": {password}}, nil, change); r.code != 403 {
			t.Errorf("%s: login: got %d, want 403", name, r.code)
		}
	}
	other, _ := w.login("vera", password)
	for name, token := range map[string]string{"no": "", "a wrong": token + "x", "another session's": other.token()} {
		if r := w.post("/task-cancel", url.Values{"id": {"a"}, "token": {token}}, otto); r.code != 403 {
			t.Errorf("a form with %s token: got %d %.200s, want 403", name, r.code, r.text)
		}
	}
	if task, err := w.store.Get(t.Context(), schedule.NoTx, "a"); err != nil || task.Status != schedule.StatusPending {
		t.Fatalf("the task after forged forms: got status %v (error %v), want schedule.StatusPending", task.Status, err)
	}
	if r := w.post("/task-cancel", form, otto, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-origin") }); r.code != 303 {
		t.Errorf("a form from the console itself: got %d %.300s, want 303", r.code, r.text)
	}
	if task, err := w.store.Get(t.Context(), schedule.NoTx, "a"); err != nil || task.Status != schedule.StatusCancelled {
		t.Errorf("the task after the console's own form: got status %v (error %v), want schedule.StatusCancelled", task.Status, err)
	}
}

// Login errors do not reveal whether a user exists.
func TestLoginErrorsRevealNothing(t *testing.T) {
	_, users := withUsers(t)
	w := newWorld(t, users)
	_, known := w.login("otto", "wrong password")
	_, unknown := w.login("nobody", "wrong password")
	clock := regexp.MustCompile(`\d{2}:\d{2}:\d{2}(\.\d+)?`)
	strip := func(r reply) string {
		return clock.ReplaceAllString(strings.ReplaceAll(string(r.text), "nobody", "otto"), "")
	}
	if known.code != 401 || unknown.code != 401 || strip(known) != strip(unknown) {
		t.Errorf("got %d for a wrong password and %d for an unknown name, want 401 and the same answer for both:\n%s\n%s",
			known.code, unknown.code, known.text, unknown.text)
	}
}

// The audit log contains refused requests and their callers.
func TestAuditHasRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, users := withUsers(t)
		w := newWorld(t, users)
		viewing, err := NewToken(file, "grafana", RoleViewer)
		check(t, err)
		<-time.After(1100 * time.Millisecond) // the file is read again
		vera, _ := w.login("vera", password)
		if r := w.post("/task-cancel", url.Values{"id": {"a"}, "token": {vera.token()}}, vera); r.code != 403 {
			t.Errorf("a viewer's form: got %d, want 403", r.code)
		}
		w.must(403, "POST", "/api/v1/tasks/a/cancel", "", bearer(viewing))
		w.login("otto", "wrong password")
		w.login("stranger", "wrong password")
		entries, err := w.c.core.Audit(t.Context(), service.Identity{Name: "otto", Role: service.RoleOperator}, "", "", 10)
		check(t, err)
		var got []string
		for _, e := range entries {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Who, e.Action, e.Target))+": "+e.Error)
		}
		slices.Reverse(got)
		want := []string{
			"vera login: ", "vera refused POST /task-cancel: " + service.ErrForbidden.Error(),
			"token grafana refused POST /api/v1/tasks/a/cancel: " + service.ErrForbidden.Error(),
			"otto login: " + auth.ErrWrong.Error(), "nobody login: " + auth.ErrWrong.Error(), // the text that was typed as a name may be a password
		}
		if !slices.Equal(got, want) {
			t.Errorf("the audit log: got\n%q\nwant\n%q", got, want)
		}
	})
}

// Without users, the console accepts only loopback host names, so that pages from other sites cannot reach it.
func TestWithoutUsers(t *testing.T) {
	w := newWorld(t)
	for host, code := range map[string]int{
		"": 200, "localhost:8086": 200, "LOCALHOST": 200, "[::1]:8086": 200, "127.0.0.1": 200,
		"evil.example": 421, "localhost.evil.example": 421, "127.0.0.1.nip.io:8086": 421, "0.0.0.0": 421, "10.0.0.1": 421,
	} {
		if r := w.ask("GET", "/api/v1/counts", "", func(r *http.Request) { r.Host = host }); r.code != code {
			t.Errorf("Host %q: got %d, want %d", host, r.code, code)
		}
	}
	r := w.ask("GET", "/tasks", "")
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Security-Policy": "frame-ancestors 'none'", "Referrer-Policy": "same-origin",
	} {
		if !strings.Contains(r.header.Get(name), want) {
			t.Errorf("header %s: got %q, want it to contain %q", name, r.header.Get(name), want)
		}
	}
	if strings.Contains(r.header.Get("Content-Security-Policy"), "unsafe") {
		t.Errorf("Content-Security-Policy: got %q, want no unsafe sources", r.header.Get("Content-Security-Policy"))
	}
}

// An application can embed the console with its own login.
func TestIdentify(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Prefix = "/admin/delays"
		c.Identify = func(r *http.Request) (Identity, error) {
			switch name := r.Header.Get("X-User"); name {
			case "":
				return Identity{}, ErrNobody
			case "broken":
				return Identity{}, errors.New("session store: password=hunter2")
			default:
				return Identity{Name: name, Role: Role(strings.TrimPrefix(name, "the "))}, nil
			}
		}
	})
	user := func(name string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("X-User", name); r.Host = "shop.example" }
	}
	for name, code := range map[string]int{"": 401, "the viewer": 200, "the operator": 200, "the admin": 401, "broken": 503} {
		r := w.ask("GET", "/admin/delays/api/v1/counts", "", user(name))
		if r.code != code || strings.Contains(string(r.text), "hunter2") {
			t.Errorf(`user %q: got %d %s, want %d and no "hunter2" in it`, name, r.code, r.text, code)
		}
	}
	w.must(403, "PUT", "/admin/delays/api/v1/tasks/a", `{"queue":"q","due":"1h"}`, user("the viewer"))
	w.must(201, "PUT", "/admin/delays/api/v1/tasks/a%2Fb", `{"queue":"q","due":"1h"}`, user("the operator"))
	w.must(200, "GET", "/api/v1/tasks/a%2Fb", "", user("the viewer")) // as a proxy that strips the prefix sends it
	if r := w.ask("GET", "/admin/delays", "", user("the viewer")); r.code != 308 || r.header.Get("Location") != "/admin/delays/" {
		t.Errorf("the prefix without a slash: got %d %v, want a redirect to it with the slash", r.code, r.header)
	}
	if r := w.ask("GET", "/admin/delaysX", "", user("the viewer")); r.code != 404 {
		t.Errorf("a path that only begins with the prefix: got %d, want 404", r.code)
	}
	for _, prefix := range []string{"admin", "/admin/", "/a//b", "/a b", "/"} {
		cfg := w.cfg
		cfg.Prefix = prefix
		if _, err := New(cfg); err == nil {
			t.Errorf("New with the prefix %q: got no error", prefix)
		}
	}
}
