package auth

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/bcrypt"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

func TestMain(m *testing.M) {
	Cost = bcrypt.MinCost
	os.Exit(m.Run())
}

// Login attempts are limited by address, and become available again over time. A browser in which the user has logged
// in before has a separate limit, so that a stranger cannot lock a user out.
func TestLoginsAreLimited(t *testing.T) {
	file := filepath.Join(folder(t), "users.yaml")
	if _, err := SetUser(file, "otto", service.RoleOperator, []byte("correct horse battery")); err != nil {
		t.Fatal(err)
	}
	notes := map[string]int{}
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	note := func(_ *http.Request, who service.Identity, action, why string) {
		notes[fmt.Sprintf("%s %s, %s", who.Name, action, cmp.Or(why, "no error"))]++
	}
	a, err := New(Config{Path: file, Proxies: proxies, Logger: zap.NewNop(), Note: note})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a.now = func() time.Time { return now }
	var known []*http.Cookie
	try := func(name, password, from, forwarded string) error {
		form := url.Values{"name": {name}, "password": {password}}
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("X-Forwarded-For", forwarded)
		r.RemoteAddr = from
		for _, c := range known {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		err := a.Login(w, r)
		if err == nil {
			known = w.Result().Cookies()
		}
		return err
	}
	const right = "correct horse battery"
	for i := range 15 {
		if err := try("otto", "wrong", fmt.Sprintf("192.0.2.%d:1", i), ""); !errors.Is(err, ErrWrong) {
			t.Fatalf("attempt %d: got error %v, want ErrWrong", i, err)
		}
	}
	if err := try("otto", right, "192.0.2.99:1", ""); err != nil {
		t.Errorf("login after wrong passwords from other addresses: got error %v, want nil", err)
	}
	for range 20 {
		a.byAddress.allow("198.51.100.7", now)
		a.byAddress.allow("2001:db8::/64", now)
	}
	if err := try("otto", right, "198.51.100.7:1", ""); err != nil {
		t.Errorf("login from a known browser at an address without attempts left: got %v, want no error", err)
	}
	for range 10 {
		if err := try("otto", "wrong", "192.0.2.99:1", ""); !errors.Is(err, ErrWrong) {
			t.Fatalf("a wrong password in a known browser: got %v, want ErrWrong", err)
		}
	}
	for range 3 {
		if err := try("otto", right, "192.0.2.99:1", ""); !errors.Is(err, ErrMany) {
			t.Errorf("an attempt beyond the limit: got error %v, want ErrMany", err)
		}
	}
	now = now.Add(12 * time.Second)
	if err := try("otto", right, "192.0.2.99:1", ""); err != nil {
		t.Errorf("login 12 s later: got %v, want no error", err)
	}
	if want := map[string]int{"otto login, no error": 3, "otto login, " + ErrWrong.Error(): 25, "otto login, " + ErrMany.Error(): 1}; !maps.Equal(notes, want) {
		t.Errorf("recorded attempts: got %v, want %v", notes, want)
	}
	for i := range known { // forges the cookies
		known[i].Value += "x"
	}
	for range 2 { // uses the two attempts that have become available again
		a.byAddress.allow("198.51.100.7", now)
		a.byAddress.allow("2001:db8::/64", now)
	}
	for from, forwarded := range map[string]string{
		"198.51.100.7:5": "203.0.113.1", "[2001:db8::1]:5": "", "10.1.2.3:5": "203.0.113.1, 198.51.100.7", "[::ffff:198.51.100.7]:5": "",
	} {
		if err := try("eve", "wrong", from, forwarded); !errors.Is(err, ErrMany) {
			t.Errorf("login from %s for %s: got %v, want ErrMany", from, forwarded, err)
		}
	}
	if err := try("eve", "wrong", "10.1.2.3:5", "203.0.113.9"); !errors.Is(err, ErrWrong) {
		t.Errorf("another client behind the proxy: got error %v, want ErrWrong", err)
	}
}

// A proxy may add the client's address as a separate X-Forwarded-For line, after a line that the client has forged.
func TestForwardedOnTwoLines(t *testing.T) {
	a := &Auth{cfg: Config{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	r := httptest.NewRequest(http.MethodPost, "/login", http.NoBody)
	r.RemoteAddr = "10.1.2.3:5"
	r.Header.Add("X-Forwarded-For", "203.0.113.1")
	r.Header.Add("X-Forwarded-For", "198.51.100.7")
	if got := a.address(r); got != "198.51.100.7" {
		t.Errorf("got the address %s, want 198.51.100.7, which the proxy has added", got)
	}
}

// A name that is too long for a user is not stored by the limiter, and is shortened in the log.
func TestLongNames(t *testing.T) {
	file := filepath.Join(folder(t), "users.yaml")
	if _, err := SetUser(file, "otto", service.RoleOperator, []byte("correct horse battery")); err != nil {
		t.Fatal(err)
	}
	logged, logs := observer.New(zap.DebugLevel)
	a, err := New(Config{Path: file, Logger: zap.New(logged), Note: func(*http.Request, service.Identity, string, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{"name": {strings.Repeat("x", 1<<20)}, "password": {"wrong"}}
	for range 11 {
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if err := a.Login(httptest.NewRecorder(), r); err == nil {
			t.Fatal("a login with an unknown name: got no error")
		}
	}
	for _, l := range logs.All() {
		if name, _ := l.ContextMap()["name"].(string); name == "" || len(name) > 100 {
			t.Errorf("the log contains %d bytes of the name, want 1 to 100", len(name))
		}
	}
}

// The memory of a limiter is bounded. It removes only keys whose attempts are all available again.
func TestLimiterIsBounded(t *testing.T) {
	l := limiter{every: time.Second, burst: 2}
	now := time.Now()
	for i := range maxKeys {
		if !l.allow(fmt.Sprint(i), now) {
			t.Fatalf("allow refused the new key %d, want the first %d keys accepted", i, maxKeys)
		}
	}
	if l.allow("one more", now) {
		t.Error("allow accepted a key beyond maxKeys, want it refused because no key can be removed")
	}
	now = now.Add(2 * time.Second)
	if !l.allow("one more", now) || len(l.keys) != 1 {
		t.Errorf("after a pause, the limiter has %d keys, want 1 because the others have all their attempts again", len(l.keys))
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
			t.Errorf("got error %v, want one containing %q", err, want)
		}
	}
}

// No concurrent change to the users file is lost. A name that looks like another user's name or a token's name is
// refused. A file keeps its mode when it is changed, and an empty file has no users.
func TestUsersFile(t *testing.T) {
	file := filepath.Join(folder(t), "users.yaml")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if _, err := NewToken(file, fmt.Sprint("t", i), service.RoleViewer); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	token, err := NewToken(file, "last", service.RoleViewer)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Read(file)
	if err != nil || len(f.Tokens) != 9 {
		t.Fatalf("got %d tokens (error %v), want 9", len(f.Tokens), err)
	}
	for _, name := range []string{"token ops", "Token x", "anna ", " anna", "an\u200bna", "a\nb", "\xff", "a\u00a0b"} {
		if _, err := SetUser(file, name, service.RoleViewer, []byte("correct horse battery")); err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf(`a user with the name %q: got error %v, want "expected" in it`, name, err)
		}
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := Remove(file, "t1"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("after a change, the file's mode is %v (error %v), want 0640", info.Mode(), err)
	}

	a, err := New(Config{Path: file, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	knows := func() bool {
		a.file.at = time.Time{}
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+token)
		_, ok := a.Caller(r)
		return ok
	}
	if !knows() {
		t.Error("a token in the users file was refused, want it accepted")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if knows() {
		t.Error("a token was accepted after the file became empty, want it refused")
	}
}

// folder returns a new folder that only its owner can write to, whatever the umask is.
func folder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	return folder
}

// The users file contains the key that signs sessions, so anyone who can read the file can forge a session.
func TestReadRefusesAFileThatOthersMayUse(t *testing.T) {
	for name, c := range map[string]struct {
		file, folder os.FileMode
		refused      string
	}{
		"its owner's":            {0o600, 0o755, ""},
		"read by its group":      {0o640, 0o750, ""},
		"read by others":         {0o644, 0o755, "o-rw"},
		"written by its group":   {0o660, 0o755, "g-w"},
		"written by others":      {0o602, 0o755, "o-rw"},
		"in a folder of others'": {0o600, 0o777, "chmod go-w"},
		"in its group's folder":  {0o600, 0o770, "chmod go-w"},
		"in a folder like /tmp":  {0o600, 0o777 | os.ModeSticky, ""},
		"in its group's /tmp":    {0o600, 0o770 | os.ModeSticky, ""},
	} {
		folder := folder(t)
		file := filepath.Join(folder, "users.yaml")
		if _, err := SetUser(file, "otto", service.RoleOperator, []byte("correct horse battery")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for path, mode := range map[string]os.FileMode{file: c.file, folder: c.folder} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
		_, err := Read(file)
		if refused := err != nil; refused != (c.refused != "") {
			t.Errorf("%s: got error %v, want %q, or none if empty", name, err, c.refused)
		}
		if err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: got error %v, want %q in it", name, err, c.refused)
		}
	}
}

// A file in a folder where it would be refused later is not created in the first place.
func TestUsersFileInASharedFolder(t *testing.T) {
	folder := folder(t)
	if err := os.Chmod(folder, 0o775); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "users.yaml")
	if _, err := SetUser(file, "otto", service.RoleOperator, []byte("correct horse battery")); err == nil || !strings.Contains(err.Error(), "chmod go-w "+folder) {
		t.Errorf("got error %v, want one with the command chmod go-w %s", err, folder)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: got error %v, want that it does not exist", err)
	}
}

// After a logout, the session is invalid, even for a copy of its cookie.
func TestLogoutEndsTheSession(t *testing.T) {
	file := filepath.Join(folder(t), "users.yaml")
	if _, err := SetUser(file, "otto", service.RoleOperator, []byte("correct horse battery")); err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Path: file, Logger: zap.NewNop(), Note: func(*http.Request, service.Identity, string, string) {}})
	if err != nil {
		t.Fatal(err)
	}
	session := func() *http.Request {
		form := url.Values{"name": {"otto"}, "password": {"correct horse battery"}}
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		if err := a.Login(w, r); err != nil {
			t.Fatal(err)
		}
		with := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		for _, c := range w.Result().Cookies() {
			with.AddCookie(c)
		}
		return with
	}
	one, other := session(), session()
	a.Logout(httptest.NewRecorder(), one)
	if _, ok := a.Caller(one); ok {
		t.Error("the session is valid after its logout, want it invalid")
	}
	if _, ok := a.Caller(other); !ok {
		t.Error("another session of the user is invalid after the logout, want it valid")
	}
}

// FuzzUsersFile parses arbitrary files. If a file is accepted, it can be written and parsed again.
func FuzzUsersFile(f *testing.F) {
	key := base64.StdEncoding.EncodeToString(make([]byte, keyBytes))
	f.Add([]byte("session_key: " + key + "\nusers:\n- name: a\n  role: viewer\n  password: $2a$04$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUVWXYZ0123456\n"))
	f.Add([]byte("session_key: " + key + "\ntokens:\n- name: ci\n  role: operator\n  sha256: " + strings.Repeat("0a", 32) + "\n"))
	f.Add([]byte("users: {a: [b]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := parse(text)
		if err != nil {
			return
		}
		written, err := yaml.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(written)
		if err != nil {
			t.Fatalf("%q was written as %q; parsing it: got error %v, want nil", text, written, err)
		}
		if twice, err := yaml.Marshal(again); err != nil || !bytes.Equal(twice, written) {
			t.Fatalf("%q was written as %q and then as %q (error %v), want the same text", text, written, twice, err)
		}
	})
}
