package topology

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Render writes the removal for people: what would go, layout by layout, then
// what would stay and why. With all, nothing is summed up.
func (r Removal) Render(w io.Writer, all bool) error {
	var b strings.Builder
	groups := map[string]*removalGroup{}
	var order []string
	for _, s := range r.Steps {
		if s.Action == Gone {
			continue
		}
		key := strings.Join([]string{string(s.Action), s.Layout, s.Reason}, "\x00")
		if s.Layout == "" && s.Kind != KindBinding || all || s.Messages+s.Consumers > 0 {
			key += "\x00" + s.key() // worth a line of its own
		}
		if groups[key] == nil {
			groups[key] = &removalGroup{first: s, counts: map[Kind]int{}}
			order = append(order, key)
		}
		groups[key].counts[s.Kind]++
	}
	for _, a := range []Action{Delete, Keep} {
		for _, key := range order {
			if g := groups[key]; g.first.Action == a {
				fmt.Fprintf(&b, "%-7s %s\n", a, g)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// removalGroup are objects that are told of together.
type removalGroup struct {
	first  RemovalStep
	counts map[Kind]int
}

func (g *removalGroup) String() string {
	s := g.first
	var text string
	if len(g.counts) == 1 && g.counts[s.Kind] == 1 {
		text = string(s.Kind) + " " + s.Name
	} else {
		var parts []string
		for _, k := range []Kind{KindQueue, KindExchange, KindBinding} {
			switch n := g.counts[k]; n {
			case 0:
			case 1:
				parts = append(parts, "1 "+string(k))
			default:
				parts = append(parts, fmt.Sprintf("%d %s", n, kindPlural[k]))
			}
		}
		of := s.Layout
		if of == "" {
			of = "destinations"
		}
		text = strings.Join(parts, ", ") + " of " + of
	}
	if s.Messages > 0 {
		text += ", with " + counted(s.Messages, "message")
	}
	if s.Consumers > 0 {
		text += ", with " + counted(s.Consumers, "consumer")
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}

// counted is "1 message" or "2 messages".
func counted(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// MarshalJSON gives {"kind":…,"name":…,"action":…,"reason":…,"messages":n,"consumers":n},
// without what is empty.
func (s RemovalStep) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Kind      Kind   `json:"kind"`
		Name      string `json:"name"`
		Action    Action `json:"action"`
		Reason    string `json:"reason,omitempty"`
		Messages  int64  `json:"messages,omitempty"`
		Consumers int64  `json:"consumers,omitempty"`
	}{s.Kind, s.Name, s.Action, s.Reason, s.Messages, s.Consumers})
}
