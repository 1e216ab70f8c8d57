package page

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// Options configure the pages. The zero value is ready to use.
type Options struct {
	// Title is at the top of every page, to tell two consoles apart. The default is "rabbitdelay".
	Title string
	// Color is the colour of a line at the top of all pages, for example #c62828. By default, there is no line.
	Color string
	// TraceURL is a link to a task's trace, in which {id} is replaced by the trace ID. By default, there is no link.
	TraceURL string
	// Logger receives the errors of databases and brokers. By default, nothing is logged.
	Logger *zap.Logger
	// Now is the clock. The default is time.Now.
	Now func() time.Time
}

// Pages is the handler of all pages. The files below assets/ need no login.
type Pages struct {
	svc   Service
	o     Options
	mux   *http.ServeMux
	live  liveCache
	speak func(*http.Request) *language
}

// New returns the pages of a service.
func New(svc Service, o Options) *Pages {
	o.Title = cmp.Or(o.Title, "rabbitdelay")
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	p := &Pages{svc: svc, o: o, mux: http.NewServeMux(), speak: languageOf}
	for pattern, h := range p.routes() {
		p.mux.HandleFunc(pattern, h)
	}
	return p
}

// routes returns the handlers of all pages by the method and the path of their requests. Every page lists its fields
// and refuses others.
func (p *Pages) routes() map[string]http.HandlerFunc {
	var (
		now        = []string{"queue", "from", "to", "over"}
		taskErrors = with(filterFields, "order")
		message    = messageFields()
	)
	all := map[string]http.HandlerFunc{
		"/":                         p.serve(func(*request) (answer, error) { return answer{}, errNoPage }),
		"GET /assets/":              serveAsset,
		"GET /live":                 p.stream(p.feedNow, now...),
		"GET /tasks-download":       p.downloads("tasks", p.tasksTable, filterFields...),
		"GET /task-errors-download": p.downloads("task-errors", p.taskErrorsTable, taskErrors...),
		"GET /recurring-download":   p.downloads("recurring", p.recurringTable, "sort"),
		"GET /dead-errors-download": p.downloads("dead-errors", p.deadErrorsTable, "queue", "order"),
		"GET /audit-download":       p.downloads("audit", p.auditTable, "target"),
		"POST /preferences":         p.serve(knownFields(p.setPreferences, "back", "theme", "language")),
	}
	show := func(path string, h handler, known ...string) { all["GET /"+path] = p.serve(knownFields(h, known...)) }
	show("{$}", p.now, now...)
	show("task-errors", p.taskErrors, taskErrors...)
	show("task", p.task, "id", "done")
	show("job", p.job, "id")
	show("recurring-task", p.recurringTask, "name", "done")
	show("trace", p.trace, "id")
	show("dead-queue", p.deadQueue, "queue", "limit")
	show("dead-errors", p.deadErrors, "queue", "order")
	updated := func(path string, h handler, known ...string) {
		show(path, h, known...)
		all["GET /live-"+path] = p.stream(p.feedPage(h), known...)
	}
	updated("tasks", p.tasks, with(filterFields, "after")...)
	updated("recurring", p.recurring, "sort", "done")
	updated("held", p.held, "done")
	updated("dead", p.dead)
	updated("layouts", p.layouts)
	updated("audit", p.audit, "target", "before")
	// A change shows its form on GET, with the values from the URL, and takes effect on POST. The form of an ended session
	// can therefore be shown again.
	change := func(path string, ask, do handler, known ...string) {
		all["GET /"+path] = p.serve(operator(knownFields(ask, known...)))
		all["POST /"+path] = p.serve(operator(knownFields(do, known...)))
	}
	change("task-new", p.askNew, p.doNew, with(message, "copy", "id", "at", "unique-key", "on-conflict", "max-wait", "cooldown")...)
	change("bulk", p.askBulk, p.doBulk, with(filterFields, "action", "at", "by", "spread", "selected")...)
	change("recurring-edit", p.askRecurring, p.putRecurring, with(message,
		"edit", "editing", "name", "cron", "time-zone", "every", "start", "end", "jitter", "misfire", "misfire-limit", "overlap", "paused")...)
	change("requeue", p.askRequeue, p.doRequeue, requeueFields...)
	change("discard", p.askRequeue, p.doRequeue, requeueFields...)
	change("retire", p.askRetire, p.doRetire)
	for _, a := range acts {
		if a.name != "" {
			change("task-"+a.name, p.askTask(a), p.doTask(a), a.fields()...)
		}
	}
	for name := range jobActs {
		change("job-"+name, p.askJob(name), p.doJob(name), "id")
	}
	for name := range heldNotices {
		change("destination-"+name, p.askHeld(name), p.doHeld(name), with([]string{"queue", "exchange"}, heldFields[name]...)...)
	}
	for name := range recurringActs {
		change("recurring-"+name, p.askRecurringAct(name), p.doRecurringAct(name), "name")
	}
	return all
}

// with returns a new list of the fields and more fields.
func with(fields []string, more ...string) []string { return slices.Concat(more, fields) }

// ServeHTTP answers with a page. Task ids are never part of a path, because they may contain any character.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// serve returns an http.HandlerFunc that renders the handler's answer or error.
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

// write sends an answer. Redirects are relative to the browser's address, which includes the prefix.
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
			http.Error(w, "the page could not be rendered", http.StatusInternalServerError)
			return
		}
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(a.status, http.StatusOK))
	_, _ = w.Write(body) //nolint:gosec // html/template has escaped it; the client may be gone
}

// Problem answers a request that was refused before it reached a page. It shows the reason and, if the caller may see
// it, the navigation.
func (p *Pages) Problem(w http.ResponseWriter, r *http.Request, status int, why string) {
	q, _ := p.request(w, r) // only the form can be invalid, and it is not needed
	p.write(w, q, answer{name: "problem", title: q.lang.text(http.StatusText(status)), status: status, data: problemData{status, http.StatusText(status), why, "Nothing was changed."}})
}
