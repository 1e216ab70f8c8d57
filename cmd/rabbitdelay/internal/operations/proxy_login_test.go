package operations_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/loopback"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// nginxFile configures nginx as a proxy that authenticates users itself, as oauth2-proxy or an ingress with an identity
// provider does.
const nginxFile = `
daemon off; master_process off; pid %[1]s/nginx.pid; error_log stderr warn;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	map $remote_user $groups { anna "staff,sre"; ben "staff,dev"; default "staff"; }
	server {
		listen %[2]s;
		location /delays/ {
			auth_basic "shop";
			auth_basic_user_file %[1]s/passwords;
			proxy_pass http://%[3]s;
			proxy_set_header Host $http_host;
			proxy_set_header Authorization "";
			proxy_set_header X-Forwarded-User $remote_user;
			proxy_set_header X-Forwarded-Groups $groups;
		}
		location /careless/ { # passes on what a user sends
			proxy_pass http://%[3]s/delays/;
			proxy_set_header Host $http_host;
		}
	}
}
`

const serveBehindProxy = `
broker: {url: amqp://guest:guest@%[1]s/}
serve:
  path_prefix: /delays
  proxy: {trusted: [127.0.0.2], user_header: X-Forwarded-User, role_header: X-Forwarded-Groups, operators: [sre], viewers: [dev]}
`

// startNginx starts nginx until the test ends. It connects to the console from 127.0.0.2.
func startNginx(t *testing.T, listen, console string) {
	t.Helper()
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx"
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("skipped: nginx is not installed; `make setup` installs it if it has the permission")
	}
	dir := t.TempDir()
	conf := fmt.Sprintf(nginxFile, dir, listen, console)
	conf = strings.ReplaceAll(conf, "proxy_pass ", "proxy_bind 127.0.0.2; proxy_pass ")
	suite.MustSucceed(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(conf), 0o600))
	suite.MustSucceed(t, os.WriteFile(filepath.Join(dir, "passwords"), []byte("anna:{PLAIN}a\nben:{PLAIN}b\ncarl:{PLAIN}c\n"), 0o600))
	c := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))
	c.Stderr = os.Stderr
	suite.MustSucceed(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// The users of a proxy with its own login are the users of the console, and no client can bypass the proxy.
func TestServeBehindAProxyWithALogin(t *testing.T) {
	t.Parallel()
	ports, err := loopback.Ports(3)
	suite.MustSucceed(t, err)
	proxy, console, nobody := loopback.Address(ports[0]), loopback.Address(ports[1]), loopback.Address(ports[2])
	startNginx(t, proxy, console)
	file := filepath.Join(t.TempDir(), "delays.yaml")
	suite.MustSucceed(t, os.WriteFile(file, fmt.Appendf(nil, serveBehindProxy, nobody), 0o600))
	folder := t.TempDir()
	suite.MustSucceed(t, os.Chmod(folder, 0o700)) // its group cannot write to it, whatever the umask is
	users := filepath.Join(folder, "users.yaml")
	made := suite.RunCLI(t.Context(), "users", "token", "deploy", "--role", "operator", "--users", users)
	if made.Code != 0 {
		t.Fatalf("users token: got %v, want exit code 0", made)
	}
	token := strings.TrimSpace(made.Stdout)
	db := filepath.Join(t.TempDir(), "shop.db")
	suite.MustSucceed(t, os.WriteFile(db, nil, 0o600))
	if migrated := suite.RunCLI(t.Context(), "migrate", "--db", "sqlite:"+db); migrated.Code != 0 {
		t.Fatalf("migrate --db ...: got %v, want exit code 0", migrated)
	}
	s := suite.Command(t, "serve", "-f", file, "--listen", console, "--users", users, "--db", "sqlite:"+db, "--log-level", "error")
	s.Stderr = os.Stderr
	suite.MustSucceed(t, s.Start())
	t.Cleanup(func() {
		_ = s.Process.Kill()
		_ = s.Wait()
	})

	ask := func(method, at, user string, form url.Values, headers ...string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(form.Encode()))
		suite.MustSucceed(t, err)
		if form != nil {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		if user != "" {
			r.SetBasicAuth(user, user[:1])
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		got, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return 0, err.Error()
		}
		defer got.Body.Close()
		text, _ := io.ReadAll(got.Body)
		return got.StatusCode, string(text)
	}
	through, direct, careless := "http://"+proxy+"/delays/", "http://"+console+"/delays/", "http://"+proxy+"/careless/"
	suite.Eventually(t, "serve answers through the proxy", func() bool {
		code, _ := ask(http.MethodGet, through, "anna", nil)
		return code == http.StatusOK
	})

	for _, c := range []struct {
		name, at, user string
		headers        []string
		code           int
		says           string
	}{
		{"an operator", through, "anna", nil, 200, "anna"},
		{"a viewer", through, "ben", nil, 200, "ben"},
		{"no login at the proxy", through, "", nil, 401, "Authorization Required"},
		{"no group", through, "carl", nil, 403, "carl is not in any group"},
		{"a forged user", through, "ben", []string{"X-Forwarded-User", "anna", "X-Forwarded-Groups", "sre"}, 200, "ben"},
		{"past the proxy", direct, "", []string{"X-Forwarded-User", "anna", "X-Forwarded-Groups", "sre"}, 403, "only requests through its proxy"},
		{
			"past the proxy, with its address in a header", direct, "",
			[]string{"X-Forwarded-User", "anna", "X-Forwarded-Groups", "sre", "X-Forwarded-For", "127.0.0.2"}, 403,
			"only requests through its proxy",
		},
		{
			"past the proxy, the API", direct + "api/v1/counts", "",
			[]string{"X-Forwarded-User", "anna", "X-Forwarded-Groups", "sre"}, 403, "only requests through its proxy",
		},
		{"past the proxy, with a token", direct + "api/v1/counts", "", []string{"Authorization", "Bearer " + token}, 200, `"count"`},
		{"past the proxy, with another token", direct + "api/v1/counts", "", []string{"Authorization", "Bearer " + token + "x"}, 401, "expected a token"},
		{"past the proxy, the login page", direct + "login", "", nil, 403, "only requests through its proxy"},
		{"a careless proxy, no user", careless, "", nil, 401, "the proxy sent no user name in X-Forwarded-User"},
		{
			"a careless proxy, two users", careless, "",
			[]string{"X-Forwarded-User", "anna", "X-Forwarded-User", "eve", "X-Forwarded-Groups", "sre"}, 400,
			"2 times",
		},
		{"health", "http://" + console + "/healthz", "", nil, 200, "ok"},
	} {
		code, text := ask(http.MethodGet, c.at, c.user, nil, c.headers...)
		if code != c.code {
			t.Errorf("%s: got code %d, want %d: %.200s", c.name, code, c.code, text)
		}
		if !strings.Contains(text, c.says) {
			t.Errorf("%s: got %.300s\nwant it to contain %q", c.name, text, c.says)
		}
	}

	_, page := ask(http.MethodGet, through+"task-new", "anna", nil)
	field := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(page)
	if field == nil {
		t.Fatalf("got the form %.2000s\nwant it to contain a token", page)
	}
	form := url.Values{"token": {field[1]}, "id": {"reminder-1"}, "queue": {"mail"}, "at": {"+1h"}}
	if code, text := ask(http.MethodPost, through+"task-new", "anna", form); code != http.StatusSeeOther {
		t.Errorf("scheduling a task as an operator: got %d %.1000s, want 303", code, text)
	}
	if code, text := ask(http.MethodGet, through+"api/v1/tasks/reminder-1", "ben", nil); code != http.StatusOK {
		t.Errorf("reading the scheduled task as a viewer: got %d %.300s, want 200", code, text)
	}
	if _, text := ask(http.MethodGet, through+"api/v1/audit", "ben", nil); !strings.Contains(text, `"who":"anna"`) {
		t.Errorf("got the audit %.300s, want an entry of the user anna", text)
	}
	form.Set("token", "x")
	if code, text := ask(http.MethodPost, through+"task-new", "anna", form); code != http.StatusForbidden {
		t.Errorf("a form with another token: got %d %.300s, want 403", code, text)
	}
	if code, text := ask(http.MethodPost, through+"task-new", "ben", form); code != http.StatusForbidden {
		t.Errorf("scheduling a task as a viewer: got %d %.300s, want 403", code, text)
	}
	if code, text := ask(http.MethodPost, through+"api/v1/tasks/bulk", "ben", nil); code != http.StatusForbidden {
		t.Errorf("changing tasks through the API as a viewer: got %d %.300s, want 403", code, text)
	}
}
