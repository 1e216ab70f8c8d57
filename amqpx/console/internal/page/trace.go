package page

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/trace"
)

// traceData is what has become of an id; the zero value asks for one.
type traceData struct {
	trace.Trace

	Waits int64 // in delay queues
}

func (p *Pages) trace(r *request) (answer, error) {
	a := answer{name: "trace", title: "Find a message or task"}
	id := strings.TrimRight(r.form.Get("id"), " \t\r\n") // as it is pasted
	if id == "" {
		a.data = traceData{}
		return a, nil
	}
	t, err := p.svc.Trace(r.Context(), r.who.Identity, id)
	if err != nil {
		return a, err
	}
	d := traceData{Trace: t}
	for _, w := range t.Waiting {
		d.Waits += w.Waiting.Total()
	}
	a.data = d
	return a, nil
}

// sentence returns s with a capital letter and a full stop.
func sentence(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return ""
	}
	s = string(unicode.ToUpper(first)) + s[n:]
	if last, _ := utf8.DecodeLastRuneInString(s); unicode.IsLetter(last) || unicode.IsDigit(last) || last == ')' {
		s += "."
	}
	return s
}
