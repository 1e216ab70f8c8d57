// Package page is the console as people see it: what waits, what is wrong, and the
// forms that change it. Every page is one level below where the console is mounted,
// so that relative links hold under any prefix, and works without JavaScript.
//
// The handler before it puts a service.Caller into the request's context, and
// compares the form token of every POST with the caller's.
package page

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

// Options tune the pages. The zero value is ready to use.
type Options struct {
	// Title stands at the top of every page, so that two consoles can be told apart;
	// default "rabbitdelay".
	Title string
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
	svc  service.Service
	o    Options
	mux  *http.ServeMux
	live liveCache
}

// New makes the pages of a service.
func New(svc service.Service, o Options) *Pages {
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
		"recurring": p.recurring, "recurring-task": p.recurringTask,
		"trace": p.trace, "dead": p.dead, "dead-queue": p.deadQueue, "layouts": p.layouts,
	} {
		p.mux.HandleFunc("GET /"+path, p.serve(h))
	}
	p.mux.HandleFunc("POST /preferences", p.serve(p.setPreferences))
	// What changes something asks by GET, with the values of a form in the URL, and
	// does it by POST. So a form whose session has ended can be shown again.
	for path, a := range map[string]struct{ ask, do handler }{
		"task-cancel":      {p.askTask("cancel"), p.doTask("cancel")},
		"task-move":        {p.askTask("move"), p.doTask("move")},
		"task-fire":        {p.askTask("fire"), p.doTask("fire")},
		"task-revive":      {p.askTask("revive"), p.doTask("revive")},
		"task-new":         {p.askNew, p.doNew},
		"bulk":             {p.askBulk, p.doBulk},
		"job-stop":         {p.askJob("stop"), p.doJob("stop")},
		"job-continue":     {p.askJob("continue"), p.doJob("continue")},
		"recurring-edit":   {p.askRecurring, p.putRecurring},
		"recurring-pause":  {p.askRecurringAct("pause"), p.doRecurringAct("pause")},
		"recurring-resume": {p.askRecurringAct("resume"), p.doRecurringAct("resume")},
		"recurring-fire":   {p.askRecurringAct("fire"), p.doRecurringAct("fire")},
		"recurring-delete": {p.askRecurringAct("delete"), p.doRecurringAct("delete")},
		"requeue":          {p.askRequeue, p.doRequeue},
		"retire":           {p.askRetire, p.doRetire},
	} {
		p.mux.HandleFunc("GET /"+path, p.serve(operator(a.ask)))
		p.mux.HandleFunc("POST /"+path, p.serve(operator(a.do)))
	}
	p.mux.HandleFunc("/", p.serve(func(*request) (answer, error) { return answer{}, errNoPage }))
	return p
}

// ServeHTTP answers with a page; a task's id may have any characters, so that none
// stands in a path.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// request is what a page is made from.
type request struct {
	*http.Request

	who   service.Caller
	now   time.Time // in the reader's time zone
	prefs preferences
	form  url.Values // of the query, and over it of the body of a POST
	still bool       // how far away instants are is left to the browser
}

// answer is a page, or where to look next.
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

// link is a page's address with its query; of names and values in turn, those that
// are empty are left out.
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

// get is a field of the form without the spaces around it.
func (r *request) get(name string) string { return strings.TrimSpace(r.form.Get(name)) }
