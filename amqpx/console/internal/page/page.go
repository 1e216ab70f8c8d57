package page

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Options tune the pages. The zero value is ready to use.
type Options struct {
	// Title is at the top of every page, to tell two consoles apart; default "rabbitdelay".
	Title string
	// Color is that of a line above all pages, such as #c62828; empty for none.
	Color string
	// TraceURL is a link to a task's trace, in which {id} stands for the trace id;
	// empty for no link.
	TraceURL string
	// Logger gets the errors of databases and brokers; nil is silent.
	Logger *zap.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Pages is the handler of all pages. What it serves below assets/ needs no login.
type Pages struct {
	svc  Service
	o    Options
	mux  *http.ServeMux
	live liveCache
}

// New makes the pages of a service.
func New(svc Service, o Options) *Pages {
	o.Title = cmp.Or(o.Title, "rabbitdelay")
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &Pages{svc: svc, o: o, mux: http.NewServeMux()}
	p.mux.Handle("GET /assets/", http.HandlerFunc(serveAsset))
	p.mux.HandleFunc("GET /live", p.stream(p.feedNow))
	p.mux.HandleFunc("GET /live-tasks", p.stream(p.feedTasks))
	for path, h := range map[string]handler{
		"{$}": p.now, "tasks": p.tasks, "task": p.task, "job": p.job, "audit": p.audit,
		"recurring": p.recurring, "recurring-task": p.recurringTask, "held": p.held,
		"trace": p.trace, "dead": p.dead, "dead-queue": p.deadQueue, "dead-errors": p.deadErrors, "layouts": p.layouts,
	} {
		p.mux.HandleFunc("GET /"+path, p.serve(h))
	}
	p.mux.HandleFunc("POST /preferences", p.serve(p.setPreferences))
	// A change asks by GET, with the values of a form in the URL, and is made by POST. So
	// the form of a session that has ended can be shown again.
	change := func(path string, ask, do handler) {
		p.mux.HandleFunc("GET /"+path, p.serve(operator(ask)))
		p.mux.HandleFunc("POST /"+path, p.serve(operator(do)))
	}
	change("task-new", p.askNew, p.doNew)
	change("bulk", p.askBulk, p.doBulk)
	change("recurring-edit", p.askRecurring, p.putRecurring)
	change("requeue", p.askRequeue, p.doRequeue)
	change("discard", p.askRequeue, p.doRequeue)
	change("retire", p.askRetire, p.doRetire)
	for _, a := range acts {
		if a.name != "" {
			change("task-"+a.name, p.askTask(a), p.doTask(a))
		}
	}
	for name := range jobActs {
		change("job-"+name, p.askJob(name), p.doJob(name))
	}
	for name := range heldNotices {
		change("destination-"+name, p.askHeld(name), p.doHeld(name))
	}
	for name := range recurringActs {
		change("recurring-"+name, p.askRecurringAct(name), p.doRecurringAct(name))
	}
	p.mux.HandleFunc("/", p.serve(func(*request) (answer, error) { return answer{}, errNoPage }))
	return p
}

// ServeHTTP answers with a page; a task's id may have any characters, so that none
// stands in a path.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

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
			return q, &service.FieldError{Field: "form", Reason: err.Error()}
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

// serve makes a page of what a handler answers.
func (p *Pages) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := p.request(w, r)
		var a answer
		if err == nil && !q.who.Role.May(service.RoleViewer) {
			err = service.ErrForbidden
		}
		if err == nil {
			a, err = h(q)
		}
		if err != nil {
			a = p.problem(q, err)
		}
		p.write(w, q, a)
	}
}

// errNoPage: nothing is at this address.
var errNoPage = errors.New("there is no such page")

// write sends an answer. A redirect is relative to the browser's address, which
// knows the prefix.
func (p *Pages) write(w http.ResponseWriter, r *request, a answer) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	for _, c := range a.cookies {
		http.SetCookie(w, c)
	}
	if a.to != "" {
		h.Set("Location", a.to)
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	body, err := p.render(r, a)
	if err != nil {
		a = p.problem(r, err)
		if body, err = p.render(r, a); err != nil {
			http.Error(w, "the page could not be made", http.StatusInternalServerError)
			return
		}
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(a.status, http.StatusOK))
	_, _ = w.Write(body) //nolint:gosec // html/template has escaped it; the reader may have gone
}

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
