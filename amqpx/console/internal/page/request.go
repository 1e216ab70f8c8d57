package page

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// request is a request with its caller, preferences and form.
type request struct {
	*http.Request

	who   service.Caller
	now   time.Time // in the reader's time zone
	prefs preferences
	form  url.Values // of the query, and over it of the body of a POST
	still bool       // the browser says how far away instants are
}

// answer is a page or a redirect.
type answer struct {
	name   string // of the template
	title  string
	data   any
	status int    // default 200
	to     string // redirect there instead

	cookies []*http.Cookie
}

type handler func(*request) (answer, error)

// operator refuses everybody else before anything is read.
func operator(h handler) handler {
	return func(r *request) (answer, error) {
		if !r.who.Role.May(service.RoleOperator) {
			return answer{}, service.ErrForbidden
		}
		return h(r)
	}
}

// takes refuses a request that has a field which the page does not know. A misspelt filter would otherwise select
// everything, on pages that offer to change what they show.
func takes(h handler, known ...string) handler {
	return func(r *request) (answer, error) {
		for _, name := range slices.Sorted(maps.Keys(r.form)) {
			if !slices.Contains(known, name) && !slices.Contains(unsaid, name) {
				return answer{}, fieldError(name, "this page has no such field; expected %s", cmp.Or(strings.Join(known, ", "), "none"))
			}
		}
		return h(r)
	}
}

// maxForm bounds the body of a form; a task's own bound is Config.MaxBody.
const maxForm = 4 << 20

func (p *Pages) request(w http.ResponseWriter, r *http.Request) (*request, error) {
	q := &request{Request: r, who: service.CallerOf(r.Context()), prefs: readPreferences(r), form: r.URL.Query()}
	q.now = p.o.Now().In(q.prefs.zone)
	if r.Method != http.MethodPost {
		return q, nil
	}
	if r.PostForm == nil { // else the handler before has read it
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			return q, &service.FieldError{Field: "form", Reason: "form: " + err.Error()}
		}
	}
	// A time without a zone is one of the zone that the page named.
	if zone, ok := zoneOf(r.PostForm.Get("zone")); ok {
		q.prefs.Zone, q.prefs.zone, q.now = zone.String(), zone, q.now.In(zone)
	}
	// What must be exact stands in the address: browsers change line breaks in fields.
	for name, values := range r.PostForm {
		q.form[name] = make([]string, len(values))
		for i, v := range values {
			q.form[name][i] = strings.ReplaceAll(v, "\r\n", "\n")
		}
	}
	return q, nil
}

// errNoPage: nothing is at this address.
var errNoPage = errors.New("there is no such page")

// link returns a page's address with a query of names and values in turn. Empty values are left
// out.
func link(path string, pairs ...string) string {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return withQuery(path, v)
}

func withQuery(path string, v url.Values) string {
	if path == "" {
		path = "./"
	}
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}

// get returns a field of the form without the spaces around it.
func (r *request) get(name string) string { return strings.TrimSpace(r.form.Get(name)) }

func fieldError(field, format string, args ...any) error {
	return &service.FieldError{Field: field, Reason: field + ": " + fmt.Sprintf(format, args...)}
}

// fields reads the fields of a form. After its first error, which stays, it reads nothing.
type fields struct {
	*request

	err error
}

func (in *fields) failf(name, format string, args ...any) {
	if in.err == nil {
		in.err = fieldError(name, format, args...)
	}
}

// instant reads a field; zero if it is empty.
func (in *fields) instant(name string) time.Time {
	s := in.get(name)
	if s == "" || in.err != nil {
		return time.Time{}
	}
	t, err := schedule.ParseInstant(s, in.now)
	if err != nil {
		in.failf(name, "%v", err)
	}
	return t
}

// required is instant for a field that must not be empty.
func (in *fields) required(name string) time.Time {
	t := in.instant(name)
	if t.IsZero() {
		in.failf(name, "no time; expected one such as tomorrow 08:00 Europe/Berlin or +90m")
	}
	return t
}

// duration reads a field; 0 if it is empty.
func (in *fields) duration(name string) time.Duration {
	s := in.get(name)
	if s == "" || in.err != nil {
		return 0
	}
	d, err := topology.ParseDuration(s)
	if err != nil {
		in.failf(name, "%v", err)
	}
	return d
}

// number reads a field with a whole number, or returns its default.
func (in *fields) number(name string, otherwise, most int) int {
	s := in.get(name)
	if s == "" || in.err != nil {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		in.failf(name, "%q; expected a number from 1 to %d", s, most)
		return 0
	}
	return n
}

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

// stamp is an instant as a page shows it.
type stamp struct {
	Zero  bool
	ISO   string // exact, in UTC
	Text  string // in the reader's time zone
	Until string // from now
	Past  bool
}

func (r *request) stamp(t time.Time) stamp {
	if t.IsZero() {
		return stamp{Zero: true}
	}
	s := stamp{ISO: shown.Instant(t), Text: t.In(r.prefs.zone).Format("2006-01-02 15:04:05 MST"), Past: !t.After(r.now)}
	if !r.still {
		s.Until = shown.FromNow(t, r.now)
	}
	return s
}

var writtenInstant = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)

// instants returns a sentence with its instants in the reader's time zone.
func (r *request) instants(s string) string {
	return writtenInstant.ReplaceAllStringFunc(s, func(iso string) string {
		t, err := time.Parse(time.RFC3339, iso)
		if err != nil {
			return iso
		}
		return r.stamp(t).Text
	})
}
