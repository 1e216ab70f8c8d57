package page

import (
	"cmp"
	"net/http"
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
	p.mux.Handle("GET /assets/", http.HandlerFunc(serveAsset))
	p.mux.HandleFunc("GET /live", p.stream(p.feedNow))
	tasks, recurring, audit := knownFields(p.tasks, append([]string{"after"}, filterFields...)...), knownFields(p.recurring, "sort", "done"), knownFields(p.audit, "target", "before")
	held, dead, layouts := knownFields(p.held, "done"), knownFields(p.dead), knownFields(p.layouts)
	for path, page := range map[string]handler{"tasks": tasks, "recurring": recurring, "held": held, "dead": dead, "layouts": layouts, "audit": audit} {
		p.mux.HandleFunc("GET /live-"+path, p.stream(p.feedPage(page)))
	}
	for path, h := range map[string]handler{
		"{$}": knownFields(p.now, "queue", "from", "to", "over"), "tasks": tasks,
		"task-errors": knownFields(p.taskErrors, append([]string{"order"}, filterFields...)...),
		"task":        knownFields(p.task, "id", "done"), "job": knownFields(p.job, "id"), "audit": audit,
		"recurring": recurring, "recurring-task": knownFields(p.recurringTask, "name", "done"), "held": held,
		"trace": knownFields(p.trace, "id"), "dead": dead, "dead-queue": knownFields(p.deadQueue, "queue", "limit"),
		"dead-errors": knownFields(p.deadErrors, "queue", "order"), "layouts": layouts,
	} {
		p.mux.HandleFunc("GET /"+path, p.serve(h))
	}
	p.mux.HandleFunc("GET /tasks-download", p.downloads("tasks", p.tasksTable, filterFields...))
	p.mux.HandleFunc("GET /task-errors-download", p.downloads("task-errors", p.taskErrorsTable, append([]string{"order"}, filterFields...)...))
	p.mux.HandleFunc("GET /recurring-download", p.downloads("recurring", p.recurringTable, "sort"))
	p.mux.HandleFunc("GET /dead-errors-download", p.downloads("dead-errors", p.deadErrorsTable, "queue", "order"))
	p.mux.HandleFunc("GET /audit-download", p.downloads("audit", p.auditTable, "target"))
	p.mux.HandleFunc("POST /preferences", p.serve(p.setPreferences))
	// A change shows its form on GET, with the values from the URL, and takes effect on POST. The form of an ended session
	// can therefore be shown again.
	change := func(path string, ask, do handler) {
		p.mux.HandleFunc("GET /"+path, p.serve(operator(ask)))
		p.mux.HandleFunc("POST /"+path, p.serve(operator(do)))
	}
	change("task-new", p.askNew, p.doNew)
	bulk := append([]string{"action", "at", "by", "spread", "selected"}, filterFields...)
	change("bulk", knownFields(p.askBulk, bulk...), knownFields(p.doBulk, bulk...))
	change("recurring-edit", p.askRecurring, p.putRecurring)
	change("requeue", knownFields(p.askRequeue, requeueFields...), knownFields(p.doRequeue, requeueFields...))
	change("discard", knownFields(p.askRequeue, requeueFields...), knownFields(p.doRequeue, requeueFields...))
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
