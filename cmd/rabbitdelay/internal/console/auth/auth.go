package auth

import (
	"cmp"
	"crypto/hmac"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// Config configures an Auth.
type Config struct {
	// Path is the path of the users file.
	Path string
	// Prefix precedes all paths.
	Prefix string
	// Proxies are the networks whose X-Forwarded-For header is trusted.
	Proxies []netip.Prefix
	// Note records a login or a logout. The parameter why is the reason if a login was refused, and is empty otherwise.
	// The name in who is empty if there is no such user.
	Note   func(r *http.Request, who service.Identity, action, why string)
	Logger *zap.Logger
}

// Auth identifies callers by sessions and tokens.
type Auth struct {
	cfg       Config
	file      *watched
	byAddress limiter // limits logins from unknown browsers
	byBrowser limiter // limits logins from known browsers, so that a stranger cannot lock out a user
	noted     limiter // limits how many refused logins are recorded
	ended     ended
	busy      chan struct{} // limits how many passwords are compared at the same time
	now       func() time.Time
}

const (
	cookie        = "rabbitdelay_session"
	browserCookie = "rabbitdelay_browser" // identifies a browser in which the user has logged in before
	browserLife   = 365 * 24 * time.Hour
)

// New returns an Auth after reading the users file.
func New(cfg Config) (*Auth, error) {
	a := &Auth{
		cfg:       cfg,
		byAddress: limiter{every: 6 * time.Second, burst: 20},
		byBrowser: limiter{every: 12 * time.Second, burst: 10},
		noted:     limiter{every: time.Minute, burst: 1},
		busy:      make(chan struct{}, 2),
		now:       time.Now,
	}
	var err error
	a.file, err = watch(cfg.Path, func(err error) {
		cfg.Logger.Warn("the users file is invalid or empty; if it is invalid, its previous content stays in effect", zap.Error(err))
	})
	if err != nil {
		return nil, err
	}
	return a, err
}

// Caller returns the caller of a request. The result is false if the caller is unknown.
func (a *Auth) Caller(r *http.Request) (service.Caller, bool) {
	if caller, given, ok := a.TokenCaller(r); given {
		return caller, ok
	}
	f := a.file.now()
	for _, c := range r.CookiesNamed(a.nameOf(r, cookie)) {
		if u, ok := f.userOf(c.Value, a.now()); ok && !a.ended.has(c.Value) {
			return service.Caller{
				Identity:  service.Identity{Name: u.Name, Role: u.Role},
				FormToken: f.sign("form", c.Value), Prefix: a.cfg.Prefix, Session: true,
			}, true
		}
	}
	return service.Caller{}, false
}

// TokenCaller returns the caller whose token a request contains. The result given is true if the request contains any
// token, and ok is true if the token is valid.
func (a *Auth) TokenCaller(r *http.Request) (caller service.Caller, given, ok bool) {
	bearer, given := bearerOf(r)
	if !given {
		return service.Caller{Prefix: a.cfg.Prefix}, false, false
	}
	t, ok := a.file.now().token(bearer)
	return service.Caller{Identity: service.Identity{Name: tokenPrefix + t.Name, Role: t.Role}, Prefix: a.cfg.Prefix}, true, ok
}

// FormToken returns the CSRF token for a user without a session of this console. All processes with the same users file
// return the same token.
func (a *Auth) FormToken(name string) string { return a.file.now().sign("proxy form", name) }

func bearerOf(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), strings.EqualFold(scheme, "Bearer")
}

// Errors of Login, which the form shows. They do not reveal whether the user exists.
var (
	ErrWrong = errors.New("name or password is wrong")
	ErrMany  = errors.New("too many attempts; wait a minute")
)

// Login starts a session for the name and password in the form.
func (a *Auth) Login(w http.ResponseWriter, r *http.Request) error {
	name, password := r.PostFormValue("name"), r.PostFormValue("password")
	name = name[:min(len(name), maxName+1)] // no user has a longer name
	f := a.file.now()
	u, known := f.user(name)
	who := service.Identity{Name: u.Name, Role: u.Role}
	address := a.address(r)
	tries, key := &a.byAddress, address
	if browser, ok := f.browser(r.CookiesNamed(a.nameOf(r, browserCookie)), name); ok {
		tries, key = &a.byBrowser, browser
	}
	if !tries.allow(key, a.now()) {
		a.cfg.Logger.Warn("refused a login because of too many attempts", zap.String("name", name), zap.String("address", address))
		if a.noted.allow(key, a.now()) {
			a.cfg.Note(r, who, "login", ErrMany.Error())
		}
		return ErrMany
	}
	select {
	case a.busy <- struct{}{}:
		defer func() { <-a.busy }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	if !known && len(f.Users) > 0 {
		u = f.Users[0] // compare with some hash, so that an unknown name takes as long as a known one
	}
	if err := bcrypt.CompareHashAndPassword([]byte(u.Password), []byte(password)); err != nil || !known {
		a.cfg.Logger.Warn("login failed", zap.String("name", name), zap.String("address", address))
		a.cfg.Note(r, who, "login", ErrWrong.Error())
		return ErrWrong
	}
	if tries == &a.byBrowser {
		tries.forget(key)
	}
	http.SetCookie(w, a.cookieOf(r, cookie, f.session(u, a.now()), life))
	http.SetCookie(w, a.cookieOf(r, browserCookie, f.newBrowser(u.Name), browserLife))
	a.cfg.Note(r, who, "login", "")
	return nil
}

// Logout ends the session. This process then also rejects copies of the session's cookie. Changing the password ends
// all sessions of a user in all processes.
func (a *Auth) Logout(w http.ResponseWriter, r *http.Request) {
	f := a.file.now()
	for _, c := range r.CookiesNamed(a.nameOf(r, cookie)) {
		if u, ok := f.userOf(c.Value, a.now()); ok {
			a.ended.add(c.Value, a.now())
			a.cfg.Note(r, service.Identity{Name: u.Name, Role: u.Role}, "logout", "")
		}
	}
	http.SetCookie(w, a.cookieOf(r, cookie, "", -time.Second))
}

// Secure reports whether a request came over TLS, to this process or to a proxy. A client that forges the proxy's
// header harms only itself.
func Secure(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

// nameOf returns the name of a cookie. Over TLS it has a prefix, which makes browsers reject cookies that another
// host of the domain, or a page without TLS, has set.
func (a *Auth) nameOf(r *http.Request, name string) string {
	switch {
	case !Secure(r):
		return name
	case a.cfg.Prefix == "":
		return "__Host-" + name
	}
	return "__Secure-" + name // browsers accept the prefix __Host- only with the path /
}

func (a *Auth) cookieOf(r *http.Request, name, value string, life time.Duration) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure depends on how the request arrived
		Name: a.nameOf(r, name), Value: value, Path: cmp.Or(a.cfg.Prefix, "/"), MaxAge: int(life.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: Secure(r),
	}
}

// address returns the client's address, by which logins are limited.
func (a *Auth) address(r *http.Request) string {
	from := peer(r)
	if !from.IsValid() {
		return r.RemoteAddr
	}
	if inNetworks(a.cfg.Proxies, from) {
		list := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		if last, err := netip.ParseAddr(strings.TrimSpace(list[len(list)-1])); err == nil {
			return network(last)
		}
	}
	return network(from)
}

// network returns an IPv4 address unchanged, and the /64 network of an IPv6 address, which belongs to one customer.
func network(ip netip.Addr) string {
	if ip = ip.Unmap(); ip.Is6() {
		p, _ := ip.WithZone("").Prefix(64) // an IPv6 address has 128 bits, so this cannot fail
		return p.String()
	}
	return ip.String()
}

// FormOK reports whether a submitted form has the caller's CSRF token.
func FormOK(c service.Caller, r *http.Request) bool {
	return c.FormToken != "" && hmac.Equal([]byte(r.PostFormValue(service.FormTokenField)), []byte(c.FormToken))
}

// limiter limits the rate of attempts for each key, such as an address. When there are too many keys, it forgets those
// that have not been used for a while.
type limiter struct {
	every time.Duration
	burst int

	mu   sync.Mutex
	keys map[string]*rate.Limiter
}

// maxKeys limits the memory of a limiter.
const maxKeys = 10_000

// allow reports whether one more attempt is allowed, and counts it.
func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.keys[key]
	if !ok {
		if l.keys == nil {
			l.keys = map[string]*rate.Limiter{}
		}
		if len(l.keys) >= maxKeys { // drop keys whose burst is fully available
			maps.DeleteFunc(l.keys, func(_ string, k *rate.Limiter) bool { return k.TokensAt(now) >= float64(l.burst) })
		}
		if len(l.keys) >= maxKeys { // all keys are in use, which indicates a distributed attack, so refuse new ones
			return false
		}
		k = rate.NewLimiter(rate.Every(l.every), l.burst)
		l.keys[key] = k
	}
	return k.AllowN(now, 1)
}

// forget removes a key after a successful login.
func (l *limiter) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.keys, key)
}
