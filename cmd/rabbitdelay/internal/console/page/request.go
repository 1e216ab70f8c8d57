package page

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/change"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// request is an HTTP request with its caller, preferences and form.
type request struct {
	*http.Request

	who   service.Caller
	now   time.Time // in the user's time zone
	prefs preferences
	lang  *language
	form  url.Values // the query parameters, overridden by the body of a POST
	still bool       // leave out relative times, because the browser computes them itself
}

// answer is a page or a redirect.
type answer struct {
	name   string // the name of the template
	title  string
	data   any
	status int    // default 200
	to     string // redirect to this address instead
	// download is the list of the page in other formats, if it can be downloaded.
	download *download
	live     string // the address of the stream that updates the page; empty if nothing does

	cookies []*http.Cookie
}

type handler func(*request) (answer, error)

// operator rejects callers who are not operators before anything is read.
func operator(h handler) handler {
	return func(r *request) (answer, error) {
		if !r.who.Role.May(service.RoleOperator) {
			return answer{}, service.ErrForbidden
		}
		return h(r)
	}
}

// knownFields wraps a handler so that requests with unknown fields are rejected. Otherwise a misspelt filter would
// select everything, on pages that offer to change whatever is selected.
func knownFields(h handler, known ...string) handler {
	return func(r *request) (answer, error) {
		if err := unknownField(r, known); err != nil {
			return answer{}, err
		}
		return h(r)
	}
}

// unknownField returns an error if the request has a field that is neither known nor part of every form, or if it
// repeats a condition, because only the first value would count.
func unknownField(r *request, known []string) error {
	for _, name := range slices.Sorted(maps.Keys(r.form)) {
		if !slices.Contains(known, name) && !slices.Contains(unsaid, name) {
			return fieldError(name, "unknown field; expected %s", cmp.Or(strings.Join(known, ", "), "none"))
		}
		if n := len(r.form[name]); n > 1 && name != chosenField && slices.Contains(filterFields, name) {
			return fieldError(name, "given %d times; expected it once", n)
		}
	}
	return nil
}

// maxForm limits the size of a form in bytes, if the handler in front of this package has not parsed it.
const maxForm = 4 << 20

func (p *Pages) request(w http.ResponseWriter, r *http.Request) (*request, error) {
	q := &request{Request: r, who: service.CallerOf(r.Context()), prefs: readPreferences(r), lang: p.speak(r)}
	q.now = p.o.Now().In(q.prefs.zone)
	var err error
	if q.form, err = url.ParseQuery(r.URL.RawQuery); err != nil { // otherwise a malformed filter would select everything
		return q, fieldError("query", "%v", err)
	}
	if r.Method != http.MethodPost {
		return q, nil
	}
	if r.PostForm == nil { // otherwise the outer handler has parsed it
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			return q, &change.FieldError{Field: "form", Reason: "form: " + err.Error()}
		}
	}
	// A time without a zone is in the time zone of the page that contained the form.
	if zone, ok := zoneOf(r.PostForm.Get("zone")); ok {
		q.prefs.Zone, q.prefs.zone, q.now = zone.String(), zone, q.now.In(zone)
	}
	// Values that must stay exact are in the URL, because browsers change line breaks in form fields.
	for name, values := range r.PostForm {
		q.form[name] = make([]string, len(values))
		for i, v := range values {
			q.form[name][i] = strings.ReplaceAll(v, "\r\n", "\n")
		}
	}
	return q, nil
}

// errNoPage means that there is no page at the address.
var errNoPage = errors.New("there is no such page")

// link returns a page's address with a query of alternating names and values. It omits empty values.
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
	return &change.FieldError{Field: field, Reason: field + ": " + fmt.Sprintf(format, args...)}
}

// fields parses the fields of a form. After the first error, which it keeps, it parses nothing more.
type fields struct {
	*request

	err error
}

func (in *fields) failf(name, format string, args ...any) {
	if in.err == nil {
		in.err = fieldError(name, format, args...)
	}
}

// instant parses a time. An empty field is the zero time.
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

// required parses a time that must not be empty.
func (in *fields) required(name string) time.Time {
	t := in.instant(name)
	if t.IsZero() {
		in.failf(name, "expected a time such as tomorrow 08:00 Europe/Berlin or +90m")
	}
	return t
}

// duration parses a duration. An empty field is 0.
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

// number parses a whole number from 1 to the given maximum. It returns fallback if the field is empty.
func (in *fields) number(name string, fallback, most int) int {
	s := in.get(name)
	if s == "" || in.err != nil {
		return fallback
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		in.failf(name, "%q; expected a number from 1 to %d", s, most)
		return 0
	}
	return n
}

// preferences are the user's choices. They are stored in cookies without a path, so a browser keeps them for the path
// at which the console is mounted.
type preferences struct {
	Theme string // light, dark, or empty for the system's theme
	Zone  string // an IANA name; empty for the browser's time zone
	Keys  string // "off" disables the single-letter shortcuts; empty enables them
	zone  *time.Location
}

// Cookies of the preferences. console.js writes them too.
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
		name, _ = url.QueryUnescape(c.Value) // a value that cannot be decoded is not a time zone
	}
	if zone, ok := zoneOf(name); ok {
		p.Zone, p.zone = name, zone
	}
	return p
}

// zoneOf returns the named time zone. The result is false if there is none.
func zoneOf(name string) (*time.Location, bool) {
	zone, err := time.LoadLocation(name)
	return zone, err == nil && name != "" && name != "Local"
}

// stamp is a time in the forms in which a page shows it.
type stamp struct {
	Zero  bool
	ISO   string // the exact time, in UTC
	Text  string // in the user's time zone
	Until string // relative to now
	Past  bool
}

func (r *request) stamp(t time.Time) stamp {
	if t.IsZero() {
		return stamp{Zero: true}
	}
	s := stamp{ISO: shown.Instant(t), Text: t.In(r.prefs.zone).Format("2006-01-02 15:04:05 MST"), Past: !t.After(r.now)}
	if !r.still {
		s.Until = r.lang.fromNow(t, r.now)
	}
	return s
}

var writtenInstant = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)

// instants converts the times in a sentence to the user's time zone.
func (r *request) instants(s string) template.HTML {
	var out strings.Builder
	for s != "" {
		at := writtenInstant.FindStringIndex(s)
		if at == nil {
			break
		}
		out.WriteString(template.HTMLEscapeString(s[:at[0]]))
		if t, err := time.Parse(time.RFC3339, s[at[0]:at[1]]); err == nil {
			out.WriteString(string(r.stamp(t).Element()))
		} else {
			out.WriteString(s[at[0]:at[1]])
		}
		s = s[at[1]:]
	}
	return template.HTML(out.String() + template.HTMLEscapeString(s)) //nolint:gosec // it is escaped
}
