package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// life is the duration of a session.
const life = 12 * time.Hour

// A session is the string "expiry.name.mark.id" followed by its signature. Each part except the first is in base64.
// The mark is derived from the user's password and role, so changing either ends the session.

var text = base64.RawURLEncoding

func (f *File) sign(purpose, s string) string {
	key, _ := base64.StdEncoding.DecodeString(f.SessionKey) // check has already decoded it
	m := hmac.New(sha256.New, key)
	_, _ = m.Write([]byte(purpose + "\x00" + s)) // a hash never fails
	return text.EncodeToString(m.Sum(nil))
}

func (f *File) mark(u User) string {
	return f.sign("mark", u.Name+"\x00"+string(u.Role)+"\x00"+u.Password)
}

func (f *File) user(name string) (User, bool) {
	for _, u := range f.Users {
		if u.Name == name {
			return u, true
		}
	}
	return User{}, false
}

// session returns the cookie value of a new session.
func (f *File) session(u User, now time.Time) string {
	s := strconv.FormatInt(now.Add(life).Unix(), 10) + "." + text.EncodeToString([]byte(u.Name)) + "." + f.mark(u) + "." + random(text)
	return s + "." + f.sign("session", s)
}

// userOf returns the user of a session. The result is false if the session is invalid or has expired.
func (f *File) userOf(session string, now time.Time) (User, bool) {
	i := strings.LastIndexByte(session, '.')
	if i < 0 || !hmac.Equal([]byte(session[i+1:]), []byte(f.sign("session", session[:i]))) {
		return User{}, false
	}
	parts := strings.Split(session[:i], ".")
	if len(parts) != 4 {
		return User{}, false
	}
	until, err := strconv.ParseInt(parts[0], 10, 64)
	name, nerr := text.DecodeString(parts[1])
	if err != nil || nerr != nil || now.Unix() >= until {
		return User{}, false
	}
	u, ok := f.user(string(name))
	return u, ok && hmac.Equal([]byte(parts[2]), []byte(f.mark(u)))
}

// newBrowser returns the value of a browser's cookie, "id.signature". The signature covers the id and the user name.
// The cookie grants no permissions. Login attempts with it are counted separately from those of unknown browsers.
func (f *File) newBrowser(name string) string {
	id := random(text)
	return id + "." + f.sign("browser", id+"\x00"+name)
}

// browser returns the id of a browser in which the user has logged in before.
func (f *File) browser(cookies []*http.Cookie, name string) (id string, ok bool) {
	for _, c := range cookies {
		id, sign, _ := strings.Cut(c.Value, ".")
		if len(f.Users) > 0 && hmac.Equal([]byte(sign), []byte(f.sign("browser", id+"\x00"+name))) {
			return id, true
		}
	}
	return "", false
}

// ended contains sessions that were logged out, until they would have expired.
type ended struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (e *ended) add(session string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.until == nil {
		e.until = map[string]time.Time{}
	}
	maps.DeleteFunc(e.until, func(_ string, t time.Time) bool { return now.After(t) })
	e.until[session] = now.Add(life)
}

func (e *ended) has(session string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.until[session]
	return ok
}

// token returns the token with the given value.
func (f *File) token(given string) (Token, bool) {
	have := sum(given)
	for _, t := range f.Tokens {
		if hmac.Equal([]byte(strings.ToLower(t.SHA256)), []byte(have)) {
			return t, true
		}
	}
	return Token{}, false
}

// Key signs the CSRF tokens of callers without a session.
type Key []byte

// Token returns the CSRF token for a caller's name.
func (k Key) Token(name string) string {
	m := hmac.New(sha256.New, k)
	_, _ = m.Write([]byte(name)) // a hash never fails
	return text.EncodeToString(m.Sum(nil))
}
