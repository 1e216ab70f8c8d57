package cli

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Behind a proxy all stays below a prefix of two parts, whether the proxy strips it or
// not: pages and what they load, redirects, cookies, forms, the API and events.
func TestServeBelowAPrefix(t *testing.T) {
	const prefix = "/ops/delays"
	users := filepath.Join(t.TempDir(), "users.yaml")
	if code, _, errs := run(t, "correct horse battery\n", "users", "add", "anna", "--role", "operator", "--users", users); code != 0 {
		t.Fatal(errs)
	}
	_, broker := memoryBroker(t)
	s := startServe(t, "--db", "sqlite:"+tasksDB(t), "--url", broker, "--users", users, "--path-prefix", prefix)
	to, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	for name, strip := range map[string]bool{"kept": false, "stripped": true} {
		t.Run(name, func(t *testing.T) {
			var through http.Handler = &httputil.ReverseProxy{
				FlushInterval: -1, // events
				Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host; r.SetXForwarded() },
			}
			if strip {
				through = http.StripPrefix(prefix, through)
			}
			mux := http.NewServeMux() // nothing but the prefix is the console's
			mux.Handle(prefix+"/", through)
			proxy := httptest.NewServer(mux)
			defer proxy.Close()
			belowPrefix(t, proxy.URL+prefix, "a/"+name)
		})
	}
}

// below is a browser that knows the address of a console only.
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
		b.t.Errorf("%s leads out, to %s", at, got.Request.URL)
	}
	return got.StatusCode, got.Request.URL, string(body)
}

func belowPrefix(t *testing.T, base, id string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	b := &below{t, base, http.Client{Jar: jar, Transport: transport}}
	if code, _, text := b.ask("GET", base+"/tasks?status=failed", nil); code != 401 || !strings.Contains(text, "Log in") {
		t.Fatalf("without a session: %d %.300s", code, text)
	}
	code, where, text := b.ask("POST", base+"/login", url.Values{"name": {"anna"}, "password": {"correct horse battery"}, "next": {"tasks?status=failed"}})
	if code != 200 || where.String() != base+"/tasks?status=failed" {
		t.Fatalf("the login leads to %s: %d %.300s", where, code, text)
	}
	home, _ := url.Parse(base + "/")
	if outside := home.JoinPath("../"); len(jar.Cookies(home)) != 2 || len(jar.Cookies(outside)) != 0 {
		t.Errorf("cookies: %v below, %v outside", jar.Cookies(home), jar.Cookies(outside))
	}
	seen := map[string]bool{}
	for next := []string{base + "/"}; len(next) > 0; next = next[1:] { // all that pages lead to and load
		code, where, text := b.ask("GET", next[0], nil)
		if code != 200 {
			t.Errorf("%s: %d", next[0], code)
		}
		if len(seen) > 40 {
			continue
		}
		for _, m := range regexp.MustCompile(`(href|src|action)="([^"#]+)"`).FindAllStringSubmatch(text, -1) {
			link, err := where.Parse(strings.ReplaceAll(m[2], "&amp;", "&"))
			if err != nil {
				t.Fatal(err)
			}
			path := link.Scheme + link.Host + link.Path
			if link.Scheme == "data" || seen[path] {
				continue
			}
			if m[1] == "action" { // a form is sent with its fields
				if !strings.HasPrefix(link.String(), base+"/") {
					t.Errorf("a form of %s leads out, to %s", where, link)
				}
				continue
			}
			seen[path] = true
			next = append(next, link.String())
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d links were found", len(seen))
	}
	_, _, text = b.ask("GET", base+"/task-new", nil)
	token := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(text)
	if token == nil {
		t.Fatalf("a form has no token: %.300s", text)
	}
	code, where, text = b.ask("POST", base+"/task-new", url.Values{"token": {token[1]}, "id": {id}, "queue": {"orders"}, "at": {"+1h"}})
	if code != 200 || where.Path != home.Path+"task" || where.Query().Get("id") != id {
		t.Errorf("the form leads to %s: %d %.300s", where, code, text)
	}
	if code, _, text := b.ask("GET", base+"/api/v1/tasks/"+url.PathEscape(id), nil); code != 200 || !strings.Contains(text, `"id":"`+id+`"`) {
		t.Errorf("the API: %d %s", code, text)
	}
	if code, _, text := b.ask("GET", base+"/api/openapi.json", nil); code != 200 || !strings.Contains(text, `"url":"/ops/delays"`) {
		t.Errorf("the document: %d", code)
	}
	for _, path := range []string{"/live", "/live-tasks", "/api/v1/events"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(got.Body).ReadString('\n')
		if err != nil || got.StatusCode != http.StatusOK || !strings.Contains(line, ":") {
			t.Errorf("%s: %d %q %v", path, got.StatusCode, line, err)
		}
		_ = got.Body.Close()
	}
	if code, where, _ := b.ask("POST", base+"/logout", url.Values{"token": {token[1]}}); code != 200 || where.String() != base+"/login" || len(jar.Cookies(home)) != 1 || jar.Cookies(home)[0].Name == "rabbitdelay_session" {
		t.Errorf("after the logout at %s: %d %v", where, code, jar.Cookies(home))
	}
}

// Files of https that cannot be used are named with their settings, before anything is
// begun.
func TestServeWithoutItsCertificate(t *testing.T) {
	t.Setenv("RABBITDELAY_SERVE_TLS_CERT", "/none/cert.pem")
	t.Setenv("RABBITDELAY_SERVE_TLS_KEY", "/none/key.pem")
	code, stdout, stderr := run(t, "", "serve", "--listen", "127.0.0.1:0", "--url", "amqp://127.0.0.1:1/")
	if want := "rabbitdelay: serve.tls.cert: cannot read /none/cert.pem: no such file or directory\n"; code != 1 || stdout != "" || stderr != want {
		t.Errorf("exit %d, output %q, errors:\n%swant:\n%s", code, stdout, stderr, want)
	}
}
