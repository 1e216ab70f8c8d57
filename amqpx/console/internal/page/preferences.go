package page

import (
	"net/http"
	"net/url"
	"strings"
	"time"
)

// preferences are the choices of a reader. They are in cookies without a path, which a browser
// keeps for where the console is mounted.
type preferences struct {
	Theme string // light, dark, or empty for that of the system
	Zone  string // an IANA name; empty for that of the browser
	Keys  string // off, or empty for on: the keys of one letter
	zone  *time.Location
}

// Cookies of the preferences; console.js writes them too.
const (
	themeCookie = "rabbitdelay_theme"
	zoneCookie  = "rabbitdelay_zone"
	keysCookie  = "rabbitdelay_keys"
)

func readPreferences(r *http.Request) preferences {
	p := preferences{zone: time.UTC}
	if c, err := r.Cookie(themeCookie); err == nil && (c.Value == "dark" || c.Value == "light") {
		p.Theme = c.Value
	}
	if c, err := r.Cookie(keysCookie); err == nil && c.Value == "off" {
		p.Keys = c.Value
	}
	name := r.URL.Query().Get("zone")
	if c, err := r.Cookie(zoneCookie); err == nil && name == "" {
		name, _ = url.QueryUnescape(c.Value) // what cannot be read is no zone
	}
	if zone, ok := zoneOf(name); ok {
		p.Zone, p.zone = name, zone
	}
	return p
}

// zoneOf returns the time zone of a name, if there is one.
func zoneOf(name string) (*time.Location, bool) {
	zone, err := time.LoadLocation(name)
	return zone, err == nil && name != "" && name != "Local"
}

// setPreferences is the form for readers without JavaScript.
func (p *Pages) setPreferences(r *request) (answer, error) {
	to := answer{to: Local(r.form.Get("back"))}
	if r.form.Has("theme") {
		to.cookies = append(to.cookies, cookie(themeCookie, r.get("theme")))
	}
	if r.form.Has("zone") {
		name := r.get("zone")
		if _, ok := zoneOf(name); !ok && name != "" {
			return answer{}, fieldError("zone", "%q is not a time zone; expected a name such as Europe/Berlin or UTC", name)
		}
		to.cookies = append(to.cookies, cookie(zoneCookie, url.QueryEscape(name)))
	}
	return to, nil
}

func cookie(name, value string) *http.Cookie {
	//nolint:gosec // it is no secret, and console.js reads it
	c := &http.Cookie{Name: name, Value: value, MaxAge: 365 * 24 * 3600, SameSite: http.SameSiteStrictMode}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// Local returns address for a redirect if it is one of the console, otherwise "./".
func Local(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" ||
		strings.ContainsAny(u.Path, "/\\:") && u.Path != "./" || strings.HasPrefix(u.Path, "..") || address == "" {
		return "./"
	}
	return withQuery(u.Path, u.Query())
}
