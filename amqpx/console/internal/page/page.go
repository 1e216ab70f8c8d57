package page

import (
	"cmp"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
)

// Options configure the pages. The zero value is ready to use.
type Options struct {
	// Title is at the top of every page, to tell two consoles apart. The default is "rabbitdelay".
	Title string
	// Color is the color of a line at the top of all pages, for example #c62828. By default, there is no line.
	Color string
	// TraceURL is a link to a task's trace, in which {id} stands for the trace ID. By default, there is no link.
	TraceURL string
	// Logger receives the errors of databases and brokers. By default, nothing is logged.
	Logger *zap.Logger
	// Now is the clock. The default is time.Now.
	Now func() time.Time
}

// Pages is the handler of all pages. The files below assets/ need no login.
type Pages struct {
	svc  Service
	o    Options
	mux  *http.ServeMux
	live liveCache
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
	p := &Pages{svc: svc, o: o, mux: http.NewServeMux()}
	p.mux.Handle("GET /assets/", http.HandlerFunc(serveAsset))
	p.mux.HandleFunc("GET /live", p.stream(p.feedNow))
	p.mux.HandleFunc("GET /live-tasks", p.stream(p.feedTasks))
	for path, h := range map[string]handler{
		"{$}": takes(p.now, "queue", "from", "to", "over"), "tasks": takes(p.tasks, append([]string{"after"}, filterFields...)...),
		"task-errors": takes(p.taskErrors, append([]string{"order"}, filterFields...)...),
		"task":        takes(p.task, "id", "done"), "job": takes(p.job, "id"), "audit": takes(p.audit, "target", "before"),
		"recurring": takes(p.recurring, "sort", "done"), "recurring-task": takes(p.recurringTask, "name", "done"), "held": takes(p.held, "done"),
		"trace": takes(p.trace, "id"), "dead": takes(p.dead), "dead-queue": takes(p.deadQueue, "queue", "limit"),
		"dead-errors": takes(p.deadErrors, "queue", "order"), "layouts": takes(p.layouts),
	} {
		p.mux.HandleFunc("GET /"+path, p.serve(h))
	}
	p.mux.HandleFunc("POST /preferences", p.serve(p.setPreferences))
	// A change asks with GET, with the values of the form in the URL, and acts on POST. The form of a session that
	// has ended can therefore be shown again.
	change := func(path string, ask, do handler) {
		p.mux.HandleFunc("GET /"+path, p.serve(operator(ask)))
		p.mux.HandleFunc("POST /"+path, p.serve(operator(do)))
	}
	change("task-new", p.askNew, p.doNew)
	bulk := append([]string{"action", "at", "by", "spread", "selected"}, filterFields...)
	change("bulk", takes(p.askBulk, bulk...), takes(p.doBulk, bulk...))
	change("recurring-edit", p.askRecurring, p.putRecurring)
	change("requeue", takes(p.askRequeue, requeueFields...), takes(p.doRequeue, requeueFields...))
	change("discard", takes(p.askRequeue, requeueFields...), takes(p.doRequeue, requeueFields...))
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

// serve converts a handler's answer to a response.
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

// write sends a response. Redirects are relative to the browser's address, which includes the prefix.
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

// Problem answers a request that is refused before it reaches a page, with the reason and, for users who may see it,
// the navigation.
func (p *Pages) Problem(w http.ResponseWriter, r *http.Request, status int, why string) {
	q, _ := p.request(w, r) // only the form can be invalid, and it is not needed
	p.write(w, q, answer{name: "problem", title: http.StatusText(status), status: status, data: problemData{status, http.StatusText(status), why, "Nothing was changed."}})
}
