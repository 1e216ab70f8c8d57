package page

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// loginData is the data of the login form.
type loginData struct {
	Problem string
	Next    string // the address to go to after the login
	// Ended reports that a form was submitted whose session had ended. Lost contains the fields of the form if they do not
	// fit into Next.
	Ended bool
	Lost  []condition
}

// maxNext limits the length of the address to return to.
const maxNext = 4096

// Login answers a request that needs a login with the login form. The form is submitted by POST to login with the
// fields name, password, next (the address to go to after the login; see Local) and the form token. A form whose
// session has ended is filled in again after the login. The problem is the reason why a login was refused.
func (p *Pages) Login(w http.ResponseWriter, r *http.Request, status int, problem string) {
	q, err := p.request(w, r)
	d := loginData{Problem: problem}
	path := strings.TrimPrefix(r.URL.Path, "/")
	switch {
	case err != nil:
		d.Next = "./"
	case path == "login":
		d.Next = Local(q.form.Get("next"))
	case r.Method == http.MethodPost && path != "preferences" && path != "logout":
		d.Ended = true
		d.Next, d.Lost = formAgain(path, q.form)
	default:
		d.Next = withQuery(path, r.URL.Query())
	}
	p.write(w, q, answer{name: "login", title: q.lang.text("Log in"), status: status, data: d})
}

// formAgain returns the address that shows a form with its fields filled in. If that address would be too long, it
// returns the fields instead.
func formAgain(path string, form url.Values) (next string, lost []condition) {
	v := url.Values{}
	for name, values := range form {
		if name == "dry" || !slices.Contains(unsaid, name) {
			v[name] = values
		}
	}
	if next = withQuery(path, v); len(next) <= maxNext {
		return next, nil
	}
	for name, values := range v {
		lost = append(lost, condition{name, strings.Join(values, "\n")})
	}
	slices.SortFunc(lost, func(a, b condition) int { return strings.Compare(a.Name, b.Name) })
	return path, lost
}

// setPreferences saves preferences for users without JavaScript.
func (p *Pages) setPreferences(r *request) (answer, error) {
	to := answer{to: Local(r.form.Get("back"))}
	if r.form.Has("theme") {
		to.cookies = append(to.cookies, cookie(themeCookie, r.get("theme")))
	}
	if r.form.Has("language") {
		to.cookies = append(to.cookies, cookie(languageCookie, r.get("language")))
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

// Local returns address if a redirect to it stays within the console, and otherwise "./".
func Local(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" ||
		strings.ContainsAny(u.Path, "/\\:") && u.Path != "./" || strings.HasPrefix(u.Path, "..") || address == "" {
		return "./"
	}
	return withQuery(u.Path, u.Query())
}
