package removal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Render writes the removal in human-readable form: first what would be deleted, layout by layout, then what would stay
// and why. If all is true, it lists every object.
func (r Plan) Render(w io.Writer, style report.Style, all bool) error {
	groups := r.groups(all)
	out := report.New(style)
	for _, a := range []Action{ActionDelete, ActionKeep} {
		mark := report.Red
		if a == ActionKeep {
			mark = report.Dim
		}
		for _, g := range groups {
			if g.Action == a {
				out.Paragraph(indent, mark(fmt.Sprintf("%-7s", a)), report.Plain(" %s", g))
			}
		}
	}
	return out.Flush(w)
}

// indent is the indentation of the lines that continue a line about objects.
const indent = 8

// group is a group of objects that share a line: the first object, and the number of objects of each kind.
type group struct {
	Step
	counts map[topology.Kind]int
}

// groups combines the objects that share a line. A queue or exchange that contains messages, has consumers or does not
// belong to a layout has its own line. If all is true, every object has.
func (r Plan) groups(all bool) []*group {
	var order []*group
	groups := map[string]*group{}
	for _, s := range r.Steps {
		if s.Action == ActionAbsent {
			continue
		}
		key := strings.Join([]string{string(s.Action), s.Layout, s.Reason}, "\x00")
		if all || s.Messages+s.Consumers > 0 || s.Layout == "" && s.Kind != topology.KindBinding {
			key += "\x00" + string(s.Kind) + s.Name
		}
		g := groups[key]
		if g == nil {
			g = &group{s, map[topology.Kind]int{}}
			groups[key], order = g, append(order, g)
		}
		g.counts[s.Kind]++
	}
	return order
}

func (g *group) String() string {
	text := string(g.Kind) + " " + g.Name
	if len(g.counts) > 1 || g.counts[g.Kind] > 1 { // "3 queues, 1 binding of delay.ttl"
		var parts []string
		for _, k := range []topology.Kind{topology.KindQueue, topology.KindExchange, topology.KindBinding} {
			if n := g.counts[k]; n > 0 {
				parts = append(parts, shown.Count(n, string(k), string(k)+"s"))
			}
		}
		text = strings.Join(parts, ", ") + " of " + cmp.Or(g.Layout, "destinations")
	}
	if g.Messages > 0 {
		text += ", with " + shown.Count(g.Messages, "message", "messages")
	}
	if g.Consumers > 0 {
		text += ", with " + shown.Count(g.Consumers, "consumer", "consumers")
	}
	if g.Reason != "" {
		text += ": " + g.Reason
	}
	return text
}

// MarshalJSON returns {"kind":…,"name":…,"action":…,"reason":…,"messages":n,"consumers":n}, without empty fields.
func (s Step) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Kind      topology.Kind `json:"kind"`
		Name      string        `json:"name"`
		Action    Action        `json:"action"`
		Reason    string        `json:"reason,omitempty"`
		Messages  int64         `json:"messages,omitempty"`
		Consumers int64         `json:"consumers,omitempty"`
	}{s.Kind, s.Name, s.Action, s.Reason, s.Messages, s.Consumers})
}
