package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// maxListed is the maximum number of objects of one kind and action that are listed individually.
const maxListed = 12

var kindPlural = map[topology.Kind]string{topology.KindExchange: "exchanges", topology.KindQueue: "queues", topology.KindBinding: "bindings"}

// mark returns the beginning of the line of an object.
func (a Action) mark() report.Text {
	switch a {
	case ActionCreate:
		return report.Green(fmt.Sprintf("+ %-10s", a))
	case ActionConflict:
		return report.Red(fmt.Sprintf("! %-10s", a))
	case ActionUnverified:
		return report.Yellow(fmt.Sprintf("? %-10s", a))
	default:
		return report.Dim(fmt.Sprintf("= %-10s", a))
	}
}

// indent is the indentation of the lines that continue a line about an object.
const indent = 6

// String formats the plan for display: first queues that do not answer, then conflicts, objects to create, unverified
// bindings and unchanged objects. It shortens long lists, while Render can list everything.
func (p Plan) String() string {
	var b strings.Builder
	_ = p.Render(&b, report.Style{}, false) // a strings.Builder never fails
	return b.String()
}

// Render writes the plan in human-readable form. If all is true, it does not shorten lists.
func (p Plan) Render(w io.Writer, style report.Style, all bool) error {
	out := report.New(style)
	if n := p.Count(ActionUnverified); n > 0 {
		out.Paragraph(indent, report.Yellow("INCOMPLETE:"), report.Plain(" %d bindings could not be verified, because %s does not show them; apply declares them again, which changes nothing if they exist", n, p.Source))
	}
	p.renderUnavailable(out, all)
	for _, a := range []Action{ActionConflict, ActionCreate, ActionUnverified, ActionSame} {
		for _, kind := range []topology.Kind{topology.KindExchange, topology.KindQueue, topology.KindBinding} {
			p.renderGroup(out, a, kind, all)
		}
	}
	for _, line := range groupWarnings(p.Warnings) {
		warn(out, line)
	}
	for i, x := range p.Strays {
		if !all && i == maxListed {
			warn(out, fmt.Sprintf("%d more bindings are not in the configuration", len(p.Strays)-i))
			break
		}
		warn(out, fmt.Sprintf("binding %s is not in the configuration: %s; %s", x, x.Effect(), unbindIt))
		if command := x.command(); command != "" {
			out.Line(report.Plain("%*s%s", indent, "", command)) // on one line, so that it can be copied
		}
	}
	if !p.PoliciesChecked {
		out.Paragraph(indent, report.Plain("note: policies were not checked, because reading them requires the management API and a user with the policymaker tag"))
	}
	out.Line(report.Plain("%s (read by %s)", p.summary(), p.Source))
	if p.Count(ActionConflict) > 0 {
		out.Paragraph(0, report.Plain("RabbitMQ cannot change an object in place: give the new one another name, or empty and delete the old one."))
	}
	return out.Flush(w)
}

func warn(out *report.Printer, text string) {
	out.Paragraph(indent, report.Yellow("warning:"), report.Plain(" %s", text))
}

func (p Plan) summary() string {
	s := fmt.Sprintf("%d to create, %d the same, %d in conflict", p.Count(ActionCreate), p.Count(ActionSame), p.Count(ActionConflict))
	if n := p.Count(ActionUnverified); n > 0 {
		s += fmt.Sprintf(", %d bindings not verified", n)
	}
	if n := len(p.Unavailable()); n > 0 {
		s += fmt.Sprintf(", queues that do not answer: %d", n)
	}
	return s
}

// renderUnavailable lists the queues that exist but do not answer.
func (p Plan) renderUnavailable(out *report.Printer, all bool) {
	list := p.Unavailable()
	if len(list) == 0 {
		return
	}
	out.Paragraph(indent, report.Yellow("UNKNOWN:"), report.Plain(" queues that exist but do not answer: %d; messages do not pass through them until they answer again. Start the nodes that are down; rabbitdelay doctor shows details", len(list)))
	mark := report.Yellow(fmt.Sprintf("? %-10s", "unknown"))
	for i, s := range list {
		if !all && i == maxListed {
			out.Line(mark, report.Plain(" %d more queues", len(list)-i))
			break
		}
		out.Paragraph(indent, mark, report.Plain(" %s %s: %s", s.Kind, s.Name, s.Unavailable))
	}
}

func (p Plan) renderGroup(out *report.Printer, a Action, kind topology.Kind, all bool) {
	listed, more := 0, 0
	for _, s := range p.Steps {
		if s.Action != a || s.Kind != kind {
			continue
		}
		// Conflicts are always listed. Unless the parameter all is true, unchanged objects are not listed, and at most
		// maxListed of the others are.
		if !all && (a == ActionSame || listed == maxListed && a != ActionConflict) {
			more++
			continue
		}
		listed++
		out.Line(a.mark(), report.Plain(" %s %s", kind, s.Name))
		for _, m := range s.Mismatches {
			out.Line(report.Plain("%*s%s", indent, "", m))
		}
	}
	if more > 0 {
		also := ""
		if listed > 0 {
			also = "more "
		}
		out.Line(a.mark(), report.Plain(" %d %s%s", more, also, kindPlural[kind]))
	}
}

// groupWarnings returns one line for each effect of a policy, however many objects it affects. A line names the first
// of the objects and gives the number of the others. If the objects are kept queues (see Warning.Kept), it names the
// others too, unless there are more than maxListed.
func groupWarnings(warnings []Warning) []string {
	type group struct {
		first Warning
		more  []string
	}
	var order []string
	groups := map[string]*group{}
	for _, w := range warnings {
		key := strings.Join([]string{string(w.Kind), w.Policy, w.Key, argument.Format(w.Value), strconv.FormatBool(w.Kept)}, "\x00")
		if g, ok := groups[key]; ok {
			g.more = append(g.more, strconv.Quote(w.Name))
			continue
		}
		groups[key] = &group{first: w}
		order = append(order, key)
	}
	lines := make([]string, len(order))
	for i, key := range order {
		g := groups[key]
		lines[i] = g.first.String()
		switch n := len(g.more); {
		case n > 0 && n <= maxListed && g.first.Kept:
			lines[i] += " (and " + strings.Join(g.more, ", ") + ")"
		case n > 0:
			lines[i] += fmt.Sprintf(" (and %d more %s)", n, kindPlural[g.first.Kind])
		}
	}
	return lines
}

type jsonMismatch struct {
	Argument string `json:"argument"`
	Want     any    `json:"want"`
	Have     any    `json:"have"`
}

type jsonStep struct {
	Kind       topology.Kind  `json:"kind"`
	Name       string         `json:"name"`
	Action     Action         `json:"action"`
	Messages   int64          `json:"messages,omitempty"`
	Silent     string         `json:"unavailable,omitempty"`
	Mismatches []jsonMismatch `json:"mismatches,omitempty"`
}

type jsonWarning struct {
	Kind   topology.Kind `json:"kind"`
	Name   string        `json:"name"`
	Policy string        `json:"policy,omitempty"`
	Key    string        `json:"key,omitempty"`
	Value  any           `json:"value,omitempty"`
	Effect string        `json:"effect"`
	Advice string        `json:"advice"`
}

type jsonStray struct {
	Exchange   string `json:"exchange"`
	Queue      string `json:"queue,omitempty"`
	ToExchange string `json:"to_exchange,omitempty"`
	RoutingKey string `json:"routing_key"`
	Effect     string `json:"effect"`
	Advice     string `json:"advice"`
}

// MarshalJSON returns {"source":…,"policies_checked":…,"create":n,"same":n,
// "conflict":n,"unverified":n,"unavailable":n,"steps":[…],"warnings":[…],"strays":[…]}. The warnings are null if the
// policies could not be read, and the strays are null if the bindings could not be read.
func (p Plan) MarshalJSON() ([]byte, error) {
	steps := make([]jsonStep, len(p.Steps))
	for i, s := range p.Steps {
		steps[i] = jsonStep{Kind: s.Kind, Name: s.Name, Action: s.Action, Messages: s.Messages, Silent: s.Unavailable}
		for _, m := range s.Mismatches {
			steps[i].Mismatches = append(steps[i].Mismatches, jsonMismatch(m))
		}
	}
	var warnings []jsonWarning
	if p.PoliciesChecked {
		warnings = []jsonWarning{}
	}
	for _, w := range p.Warnings {
		warnings = append(warnings, jsonWarning{w.Kind, w.Name, w.Policy, w.Key, w.Value, w.Effect, w.Advice})
	}
	var strays []jsonStray
	if p.bindingsKnown {
		strays = []jsonStray{}
	}
	for _, x := range p.Strays {
		strays = append(strays, jsonStray{x.Exchange, x.Queue, x.ToExchange, x.RoutingKey, x.Effect(), x.Advice()})
	}
	return json.Marshal(struct {
		Source          string        `json:"source"`
		PoliciesChecked bool          `json:"policies_checked"`
		Create          int           `json:"create"`
		Same            int           `json:"same"`
		Conflict        int           `json:"conflict"`
		Unverified      int           `json:"unverified"`
		Unavailable     int           `json:"unavailable"`
		Steps           []jsonStep    `json:"steps"`
		Warnings        []jsonWarning `json:"warnings"`
		Strays          []jsonStray   `json:"strays"`
	}{p.Source, p.PoliciesChecked, p.Count(ActionCreate), p.Count(ActionSame), p.Count(ActionConflict), p.Count(ActionUnverified), len(p.Unavailable()), steps, warnings, strays})
}
