package page

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/trace"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// deadData is the data of the list of queues with dead letters or parked messages.
type deadData struct {
	Queues []status.DeadLetters
	Parked status.DeadLetters
	Blind  string // why there is nothing to show
}

func (p *Pages) dead(r *request) (answer, error) {
	o, err := p.svc.Overview(r.Context(), r.who.Identity)
	if err != nil {
		return answer{}, err
	}
	d := deadData{Parked: o.Status.Parked, Blind: o.Blind()}
	for _, x := range o.Status.Destinations {
		if x.Dead != nil {
			d.Queues = append(d.Queues, *x.Dead)
		}
	}
	return answer{name: "dead", title: r.lang.text("Dead letters and parked messages"), data: d, live: "live-dead"}, nil
}

// deadQueueData is the data of the page of a queue, with the messages at its head.
type deadQueueData struct {
	inspect.Peeked

	Limit   int
	Reasons []reasonCount
}

type reasonCount struct {
	Reason string
	Count  int
	Href   string
}

func (p *Pages) deadQueue(r *request) (answer, error) {
	in := fields{request: r}
	d := deadQueueData{Limit: in.number("limit", inspect.DefaultPeek, inspect.MaxPeek)}
	if in.err != nil {
		return answer{}, in.err
	}
	var err error
	if d.Peeked, err = p.svc.Peek(r.Context(), r.who.Identity, r.form.Get("queue"), d.Limit); err != nil {
		return answer{}, err
	}
	at := map[string]int{}
	for _, m := range d.Messages {
		if !r.who.Role.May(service.RoleOperator) && m.Delivery != nil {
			m.Body = nil
		}
		i, ok := at[m.Reason]
		if !ok {
			i = len(d.Reasons)
			at[m.Reason] = i
			d.Reasons = append(d.Reasons, reasonCount{Reason: m.Reason, Href: link("requeue", "queue", d.Queue, "reason", m.Reason)})
		}
		d.Reasons[i].Count++
	}
	return answer{name: "dead-queue", title: r.lang.text("Queue") + " " + middle(40, d.Queue), data: d}, nil
}

// requeueData is the data of the form that requeues or discards messages, with the outcome of the dry run.
type requeueData struct {
	Fields  url.Values
	Queue   string
	Discard bool                   // the form discards the messages instead of requeueing them
	Report  *inspect.RequeueReport // nil before the dry run
	Chosen  int
	Counted string // a digest of the form of the dry run
	Again   bool   // the form has changed since the dry run
	Results []requeueLine

	Reasons, Destinations []string // suggestions for the form's fields
	Notes                 []string
	Problem               string
}

type requeueLine struct {
	Count       int
	Text        string // the outcome, before the name of the destination
	Destination string // empty if unknown
	Why         string
	Stays       bool
}

// maxRequeue is the maximum number of messages in one run.
const maxRequeue = 1_000_000

// requeueFields are the fields of the requeue and discard forms.
var requeueFields = []string{
	"queue", "reason", "ids", "destination", "error", "error-like", "header", "value", "older-than", "newer-than", "tasks", "limit", "rate",
	"to-queue", "to-exchange", "to-key",
}

func readRequeue(r *request) (service.Requeue, error) {
	in := fields{request: r}
	list := func(name string) []string { return lines(strings.Join(r.form[name], "\n")) }
	q := service.Requeue{
		Queue: r.form.Get("queue"), Discard: discards(r), To: topology.Destination{Queue: r.get("to-queue"), Exchange: r.get("to-exchange"), RoutingKey: r.get("to-key")},
		Filter: inspect.DeadLetterFilter{
			Reasons: list("reason"), IDs: list("ids"), Destinations: list("destination"), Error: r.get("error"), ErrorLike: r.get("error-like"),
			Header: r.get("header"), HeaderValue: r.get("value"), Tasks: r.get("tasks") != "", OlderThan: in.duration("older-than"), NewerThan: in.duration("newer-than"),
		},
		Limit: in.number("limit", 0, maxRequeue),
	}
	if s := r.get("rate"); s != "" {
		var err error
		if q.Rate, err = strconv.ParseFloat(s, 64); err != nil || q.Rate <= 0 || q.Rate > 100_000 {
			in.failf("rate", "%q; expected messages a second, such as 10", s)
		}
	}
	if q.Queue == "" {
		in.failf("queue", "is empty; expected a dead-letter queue, or the parked queue")
	}
	return q, in.err
}

// discards reports whether a request is for the page that discards messages, which has the same form as the page that
// requeues them.
func discards(r *request) bool { return strings.HasSuffix(r.URL.Path, "/discard") }

// askRequeue shows the form and, with the field "dry", the outcomes of a dry run.
func (p *Pages) askRequeue(r *request) (answer, error) {
	form := typed(r.form)
	d := requeueData{Fields: form, Queue: r.form.Get("queue"), Discard: discards(r), Counted: r.counted(form, time.Time{})}
	a := answer{name: "requeue", title: r.lang.text("Requeue from") + " " + middle(40, d.Queue)}
	if d.Discard {
		a.title = r.lang.text("Discard from") + " " + middle(40, d.Queue)
	}
	d.Reasons, d.Destinations = p.suggestDead(r, d.Queue)
	q, err := readRequeue(r)
	if err == nil && r.get("dry") != "" {
		var rep inspect.RequeueReport
		if rep, err = p.svc.RequeueDryRun(r.Context(), r.who.Identity, q); err == nil {
			d.Report, d.Chosen = &rep, rep.Gone()
			d.Results = requeueLines(rep)
			if rep.CountsDeliveries && rep.DeliveryLimit != 0 {
				d.Notes = append(d.Notes, r.lang.text("Each dry run uses up one of the deliveries that the queue allows for every remaining message."))
			}
			if rep.Moved > 0 {
				d.Notes = append(d.Notes, r.lang.plural(int64(rep.Moved), "%s message was near the delivery limit of the queue, and was moved to its end as a copy.", "%s messages were near the delivery limit of the queue, and were moved to its end as copies."))
			}
		}
	}
	if err != nil {
		problem := describe(err)
		if problem.Status != http.StatusBadRequest {
			return a, err
		}
		d.Problem, a.status = problem.Detail, problem.Status
	}
	a.data = d
	return a, nil
}

// suggestDead returns, as suggestions for the form, the reasons and destinations of the messages in a queue that the
// last overview has peeked at. Without an overview there are no suggestions.
func (p *Pages) suggestDead(r *request, queue string) (reasons, destinations []string) {
	o, err := p.svc.Overview(r.Context(), r.who.Identity)
	if err != nil {
		return nil, nil
	}
	found := []status.DeadLetters{o.Status.Parked}
	for _, d := range o.Status.Destinations {
		if d.Dead != nil {
			found = append(found, *d.Dead)
		}
	}
	for _, l := range found {
		if l.Queue != queue {
			continue
		}
		for _, g := range l.Groups {
			reasons, destinations = append(reasons, g.Reason), append(destinations, g.Destination)
		}
	}
	tidy := func(list []string) []string {
		slices.Sort(list)
		return slices.DeleteFunc(slices.Compact(list), func(s string) bool { return s == "" })
	}
	return tidy(reasons), tidy(destinations)
}

// doRequeue starts a job for the messages that a dry run has selected. If the form has changed since that dry run, it
// does another dry run instead.
func (p *Pages) doRequeue(r *request) (answer, error) {
	if r.form.Get("do") == "count" {
		return r.count(strings.TrimPrefix(r.URL.Path, "/"), p.askRequeue)
	}
	q, err := readRequeue(r)
	if err != nil || r.form.Get("counted") != r.counted(typed(r.form), time.Time{}) {
		r.form.Set("dry", "1")
		return recounted(p.askRequeue(r))
	}
	in := fields{request: r}
	if q.Limit = in.number("count", 0, maxRequeue); q.Limit == 0 {
		return answer{}, fieldError("count", "%q; expected the number that was confirmed, at most %d", r.get("count"), maxRequeue)
	}
	j, err := p.svc.Requeue(r.Context(), r.who.Identity, q)
	return answer{to: link("job", "id", j.ID)}, err
}

// outcomes describes the outcomes of a dry run in words similar to those of "rabbitdelay requeue".
var outcomes = []struct {
	is   inspect.RequeueOutcome
	text string
}{
	{inspect.RequeueSent, "would be sent to"},
	{inspect.RequeueRevived, "would be revived and sent by a relay to"},
	{inspect.RequeueRemoved, "would be removed, because their tasks have ended or were sent again, for"},
	{inspect.RequeueDiscarded, "would be discarded, for"},
	{inspect.RequeueStayed, "would stay, for"},
}

func requeueLines(rep inspect.RequeueReport) []requeueLine {
	var list []requeueLine
	for _, o := range outcomes {
		for _, x := range rep.Results {
			if x.Outcome != o.is {
				continue
			}
			list = append(list, requeueLine{x.Count, o.text, x.Destination, x.Why, o.is == inspect.RequeueStayed})
		}
	}
	return list
}

// deadErrorsData groups the messages of a whole queue by their errors.
type deadErrorsData struct {
	deadletters.ErrorGroups

	Orders []choice
	Rows   []errorRow
}

type errorRow struct {
	deadletters.ErrorGroup

	Requeue, Discard string // the forms with this group selected
}

// groupOrders lists the sort orders in the order of their links.
var groupOrders = []struct {
	is    deadletters.GroupOrder
	label string
}{{deadletters.GroupsNewest, "Newest first"}, {deadletters.GroupsOldest, "Oldest first"}, {deadletters.GroupsMost, "Largest first"}}

func (p *Pages) deadErrors(r *request) (answer, error) {
	return p.deadErrorsUpTo(r, deadletters.DefaultGroups)
}

// deadErrorsUpTo answers as deadErrors does, with the given limit on the number of groups.
func (p *Pages) deadErrorsUpTo(r *request, limit int) (answer, error) {
	queue, order := r.form.Get("queue"), deadletters.GroupOrder(r.get("order"))
	if order == "" {
		order = deadletters.GroupsNewest
	}
	d := deadErrorsData{}
	known := false
	for _, o := range groupOrders {
		d.Orders = append(d.Orders, choice{r.lang.text(o.label), link("dead-errors", "queue", queue, "order", string(o.is)), o.is == order})
		known = known || o.is == order
	}
	if !known {
		return answer{}, fieldError("order", "%q; expected newest, oldest or most", order)
	}
	var err error
	if d.ErrorGroups, err = p.svc.ErrorGroups(r.Context(), queue, order, limit); err != nil {
		return answer{}, err
	}
	for _, g := range d.Groups {
		form := func(page string) string {
			return link(page, "queue", queue, "reason", g.Reason, "destination", g.Destination, "error-like", g.ErrorLike)
		}
		d.Rows = append(d.Rows, errorRow{g, form("requeue"), form("discard")})
	}
	return answer{name: "dead-errors", title: r.lang.text("Errors in") + " " + middle(40, queue), data: d, download: downloadOf("dead-errors", r.form)}, nil
}

// traceData is the result of a search for an id. The zero value shows an empty search form.
type traceData struct {
	trace.Trace

	InDelayQueues string // how many messages wait in delay queues, which are not searched
}

func (p *Pages) trace(r *request) (answer, error) {
	a := answer{name: "trace", title: r.lang.text("Find a message or task")}
	id := strings.TrimRight(r.form.Get("id"), " \t\r\n") // pasted ids often end in whitespace
	if id == "" {
		a.data = traceData{}
		return a, nil
	}
	t, err := p.svc.Trace(r.Context(), r.who.Identity, id)
	if err != nil {
		return a, err
	}
	d := traceData{Trace: t}
	if r.lang.translates() {
		d.Why = t.ExplainIn(r.lang.text)
	}
	waits := int64(0)
	for _, w := range t.Waiting {
		waits += w.Waiting.Total()
	}
	queues := r.lang.plural(int64(len(t.Waiting)), "%s delay queue", "%s delay queues")
	d.InDelayQueues = r.lang.plural(waits, "%s message waits in %s. It is not searched for there, because that would make it late.", "%s messages wait in %s. They are not searched, because that would make them late.", queues)
	a.data = d
	return a, nil
}

// sentence returns s with an initial capital letter, and with a full stop unless it already ends in punctuation.
func (l *language) sentence(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return ""
	}
	s = string(unicode.ToUpper(first)) + s[n:]
	if last, _ := utf8.DecodeLastRuneInString(s); unicode.IsLetter(last) || unicode.IsDigit(last) || last == ')' {
		s += l.text(".")
	}
	return s
}
