package auth

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

// Tries are counted by name and by address, and come back with time.
func TestLoginsAreLimited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users.yaml")
	if _, err := SetUser(file, "otto", service.RoleOperator, []byte("correct horse battery")); err != nil {
		t.Fatal(err)
	}
	logins := 0
	a, err := New(Config{Path: file, Proxy: netip.MustParsePrefix("10.0.0.0/8"), Logger: zap.NewNop(), Login: func(_ *http.Request, _ service.Identity) { logins++ }})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a.now = func() time.Time { return now }
	try := func(name, password, from, forwarded string) error {
		form := url.Values{"name": {name}, "password": {password}}
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("X-Forwarded-For", forwarded)
		r.RemoteAddr = from
		return a.Login(httptest.NewRecorder(), r)
	}
	for i := range 10 {
		if err := try("otto", "wrong", fmt.Sprintf("192.0.2.%d:1", i), ""); !errors.Is(err, ErrWrong) {
			t.Fatalf("try %d: %v", i, err)
		}
	}
	if err := try("otto", "correct horse battery", "192.0.2.99:1", ""); !errors.Is(err, ErrMany) {
		t.Errorf("an eleventh try: %v", err)
	}
	now = now.Add(12 * time.Second)
	if err := try("otto", "correct horse battery", "192.0.2.99:1", ""); err != nil || logins != 1 {
		t.Errorf("12 s later: %v, %d logins", err, logins)
	}
	for range 20 {
		a.byIP.allow("198.51.100.7", now)
		a.byIP.allow("2001:db8::/64", now)
	}
	for from, forwarded := range map[string]string{
		"198.51.100.7:5": "203.0.113.1", "[2001:db8::1]:5": "", "10.1.2.3:5": "203.0.113.1, 198.51.100.7", "[::ffff:198.51.100.7]:5": "",
	} {
		if err := try("eve", "wrong", from, forwarded); !errors.Is(err, ErrMany) {
			t.Errorf("from %s for %s: %v", from, forwarded, err)
		}
	}
	if err := try("eve", "wrong", "10.1.2.3:5", "203.0.113.9"); !errors.Is(err, ErrWrong) {
		t.Errorf("another behind the proxy: %v", err)
	}
}

// A proxy may put the address that it has seen on a line of its own, after one of who
// wants to be somebody else.
func TestForwardedOnTwoLines(t *testing.T) {
	a := &Auth{cfg: Config{Proxy: netip.MustParsePrefix("10.0.0.0/8")}}
	r := httptest.NewRequest(http.MethodPost, "/login", http.NoBody)
	r.RemoteAddr = "10.1.2.3:5"
	r.Header.Add("X-Forwarded-For", "203.0.113.1")
	r.Header.Add("X-Forwarded-For", "198.51.100.7")
	if got := a.address(r); got != "198.51.100.7" {
		t.Errorf("it comes from %s, expected what the proxy has seen", got)
	}
}

// A name that nobody can have costs neither memory nor room in the log.
func TestLongNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users.yaml")
	if _, err := SetUser(file, "otto", service.RoleOperator, []byte("correct horse battery")); err != nil {
		t.Fatal(err)
	}
	logged, logs := observer.New(zap.DebugLevel)
	a, err := New(Config{Path: file, Logger: zap.New(logged)})
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"name": {strings.Repeat("x", 1<<20)}, "password": {"wrong"}}
	for range 11 {
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if err := a.Login(httptest.NewRecorder(), r); err == nil {
			t.Fatal("it is let in")
		}
	}
	for name := range a.byWho.keys {
		if len(name) > 100 {
			t.Errorf("%d bytes of a name are remembered", len(name))
		}
	}
	for _, l := range logs.All() {
		if name, _ := l.ContextMap()["name"].(string); name == "" || len(name) > 100 {
			t.Errorf("%d bytes of a name are in the log", len(name))
		}
	}
}

// What a limiter remembers is bounded, and what it forgets has no debts.
func TestLimiterIsBounded(t *testing.T) {
	l := limiter{every: time.Second, burst: 2}
	now := time.Now()
	for i := range maxKeys {
		if !l.allow(fmt.Sprint(i), now) {
			t.Fatal("a new key was refused")
		}
	}
	if l.allow("one more", now) {
		t.Error("there is no room, and nothing to forget")
	}
	now = now.Add(2 * time.Second)
	if !l.allow("one more", now) || len(l.keys) != 1 {
		t.Errorf("%d keys", len(l.keys))
	}
}

func TestFileIsChecked(t *testing.T) {
	key := random(text)
	for want, f := range map[string]File{
		"session_key: expected at least 32 bytes":     {SessionKey: "short"},
		"role: \"root\"; expected viewer or operator": {SessionKey: key + "=", Users: []User{{Name: "a", Role: "root"}}},
		"expected a bcrypt hash":                      {SessionKey: key + "=", Users: []User{{Name: "a", Role: service.RoleViewer, Password: "plain"}}},
		"expected 64 hexadecimal digits":              {SessionKey: key + "=", Tokens: []Token{{Name: "a", Role: service.RoleViewer, SHA256: "x"}}},
	} {
		f.SessionKey = strings.NewReplacer("-", "+", "_", "/").Replace(f.SessionKey)
		if err := f.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected %s", err, want)
		}
	}
}
