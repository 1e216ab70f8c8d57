package serve_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// Behind a proxy with a path prefix of two segments, pages and their assets, redirects, cookies, forms, the API and
// events stay below the prefix, whether or not the proxy strips it.
func TestServeBelowAPrefix(t *testing.T) {
	const prefix = "/ops/delays"
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o700); err != nil { // its group cannot write to it, whatever the umask is
		t.Fatal(err)
	}
	users := filepath.Join(folder, "users.yaml")
	added := clitest.RunWith(t.Context(), "correct horse battery\n", "users", "add", "anna", "--role", "operator", "--users", users)
	if added.Code != 0 {
		t.Fatalf("users add: got %v, want exit code 0", added)
	}
	b := clitest.NewBroker(t, amqptest.Options{})
	s := start(t, "--db", clitest.NewDB(t), "--url", b.URL, "--users", users, "--path-prefix", prefix)
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	for name, strip := range map[string]bool{"kept": false, "stripped": true} {
		t.Run(name, func(t *testing.T) {
			var through http.Handler = &httputil.ReverseProxy{
				FlushInterval: -1, // pass on events without delay
				Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host; r.SetXForwarded() },
			}
			if strip {
				through = http.StripPrefix(prefix, through)
			}
			mux := http.NewServeMux() // only the prefix belongs to the console
			mux.Handle(prefix+"/", through)
			proxy := httptest.NewServer(mux)
			defer proxy.Close()
			belowPrefix(t, proxy.URL+prefix, "a/"+name)
		})
	}
}

// below is a browser that knows only the address of a console.
type below struct {
	t    *testing.T
	base string
	http.Client
}

func (b *below) ask(method, at string, form url.Values) (code int, where *url.URL, text string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, at, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	got, err := b.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if !strings.HasPrefix(got.Request.URL.String(), b.base+"/") {
		b.t.Errorf("%s redirects to %s, want an address that begins with %q", at, got.Request.URL, b.base+"/")
	}
	return got.StatusCode, got.Request.URL, string(body)
}

// expect fails the test unless a request, after redirects, is answered with the code from the address where.
func (b *below) expect(method, at string, form url.Values, code int, where string) (text string) {
	b.t.Helper()
	got, led, text := b.ask(method, at, form)
	if got != code {
		b.t.Errorf("%s %s: code %d, want %d: %.300s", method, at, got, code, text)
	}
	if led.String() != where {
		b.t.Errorf("%s %s redirects to %s, want %s", method, at, led, where)
	}
	return text
}

func belowPrefix(t *testing.T, base, id string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &below{t, base, http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}}
	home, err := url.Parse(base + "/")
	if err != nil {
		t.Fatal(err)
	}
	code, _, text := b.ask("GET", base+"/tasks?status=failed", nil)
	if code != http.StatusUnauthorized {
		t.Errorf("without a session: status %d, want 401", code)
	}
	if !strings.Contains(text, "Log in") {
		t.Errorf("the page without a session: got %.300s, want a login form", text)
	}
	login := url.Values{"name": {"anna"}, "password": {"correct horse battery"}, "next": {"tasks?status=failed"}}
	b.expect("POST", base+"/login", login, http.StatusOK, base+"/tasks?status=failed")
	if list := jar.Cookies(home); len(list) != 2 {
		t.Errorf("got the cookies %v, want 2", list)
	}
	if list := jar.Cookies(home.JoinPath("../")); len(list) != 0 {
		t.Errorf("cookies outside the prefix: got %v, want none", list)
	}
	b.follow()

	_, _, text = b.ask("GET", base+"/task-new", nil)
	token := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(text)
	if token == nil {
		t.Fatalf("got the form %.300s, want it to contain a token", text)
	}
	task := url.Values{"token": {token[1]}, "id": {id}, "queue": {"orders"}, "at": {"+1h"}}
	code, where, text := b.ask("POST", base+"/task-new", task)
	if code != http.StatusOK {
		t.Errorf("submitting the form: got %d, want 200: %.300s", code, text)
	}
	if where.Path != home.Path+"task" {
		t.Errorf("the form redirects to %s, want Path = %v", where, home.Path+"task")
	}
	if got := where.Query().Get("id"); got != id {
		t.Errorf("the form redirects to the task %q, want %q", got, id)
	}
	api := base + "/api/v1/tasks/" + url.PathEscape(id)
	if text := b.expect("GET", api, nil, http.StatusOK, api); !strings.Contains(text, `"id":"`+id+`"`) {
		t.Errorf("the API: got %s, want %q in it", text, `"id":"`+id+`"`)
	}
	openAPI := base + "/api/openapi.json"
	if text := b.expect("GET", openAPI, nil, http.StatusOK, openAPI); !strings.Contains(text, `"url":"/ops/delays"`) {
		t.Errorf("the API's document: got %.300s, want the prefix in it", text)
	}
	for _, path := range []string{"/live", "/live-tasks", "/api/v1/events"} {
		b.stream(base + path)
	}
	b.expect("POST", base+"/logout", url.Values{"token": {token[1]}}, http.StatusOK, base+"/login")
	left := jar.Cookies(home)
	if len(left) != 1 {
		t.Fatalf("after the logout: got the cookies %v, want 1", left)
	}
	if left[0].Name == "rabbitdelay_session" {
		t.Errorf("after the logout: got the cookie %s, want another than the session's", left[0].Name)
	}
}

// follow requests every address to which pages link or which they load.
func (b *below) follow() {
	b.t.Helper()
	link := regexp.MustCompile(`(href|src|action)="([^"#]+)"`)
	seen := map[string]bool{}
	for next := []string{b.base + "/"}; len(next) > 0; next = next[1:] {
		code, where, text := b.ask("GET", next[0], nil)
		if code != http.StatusOK {
			b.t.Errorf("%s: code %d, want 200", next[0], code)
		}
		if len(seen) > 40 {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to, err := where.Parse(strings.ReplaceAll(m[2], "&amp;", "&"))
			if err != nil {
				b.t.Fatal(err)
			}
			path := to.Scheme + to.Host + to.Path
			if to.Scheme == "data" || seen[path] {
				continue
			}
			if m[1] == "action" { // a form is submitted with its fields
				if !strings.HasPrefix(to.String(), b.base+"/") {
					b.t.Errorf("a form on page %s is submitted to %s, want an address below the prefix", where, to)
				}
				continue
			}
			seen[path] = true
			next = append(next, to.String())
		}
	}
	if len(seen) < 10 {
		b.t.Errorf("got %d links, want at least 10", len(seen))
	}
}

// stream checks that the first line of an event stream arrives.
func (b *below) stream(at string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, at, http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := b.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		b.t.Errorf("%s: code %d, want 200", at, got.StatusCode)
	}
	line, err := bufio.NewReader(got.Body).ReadString('\n')
	if err != nil {
		b.t.Errorf("stream %s: %v", at, err)
	}
	if !strings.Contains(line, ":") {
		b.t.Errorf("stream %s: got the line %q, want an event", at, line)
	}
}
