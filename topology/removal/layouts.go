package removal

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/naming"
	"github.com/rabbitdelay/rabbitdelay/topology/observed"
)

// layouts are those that a removal is about, and those beside them.
type layouts struct {
	going  map[string]bool          // by tag, those that are to be destroyed
	unsure map[string]naming.Layout // by tag, those of them that others may use and nobody named
	others map[string]naming.Layout // by an object's name, those that are on the broker beside
}

// survey finds out which layouts there are.
func survey(t topology.Topology, live observed.Broker, opts Options) layouts {
	l := layouts{going: map[string]bool{}, unsure: map[string]naming.Layout{}, others: map[string]naming.Layout{}}
	described := map[string]bool{}
	for _, name := range objectNames(t) {
		described[name] = true
		if own, ok := naming.LayoutOf(opts.Prefix, name); ok {
			l.going[own.Tag] = true
			if own.Ambiguous() && !opts.nameLayout(own, name) {
				l.unsure[own.Tag] = own
			}
		}
	}
	for _, name := range append(slices.Sorted(maps.Keys(live.Exchanges)), slices.Sorted(maps.Keys(live.Queues))...) {
		if other, ok := naming.LayoutOf(opts.Prefix, name); ok && !described[name] {
			l.others[name] = other
		}
	}
	return l
}

// objectNames returns the names of the topology's exchanges and queues.
func objectNames(t topology.Topology) []string {
	var names []string
	for _, e := range t.Exchanges {
		names = append(names, e.Name)
	}
	for _, q := range t.Queues {
		names = append(names, q.Name)
	}
	return names
}

// nameLayout reports whether the caller asked for an object of a layout by name.
func (o Options) nameLayout(l naming.Layout, object string) bool {
	return slices.Contains(o.Layouts, l.Name) || slices.Contains(o.Layouts, object)
}

// beside is the name of a layout that is there and is not to be destroyed; empty
// if there is none.
func (l layouts) beside() string {
	for _, name := range slices.Sorted(maps.Keys(l.others)) {
		return l.others[name].Name
	}
	return ""
}

// sharing is the name of such a layout with the same tag.
func (l layouts) sharing(tag string) string {
	for _, name := range slices.Sorted(maps.Keys(l.others)) {
		if l.others[name].Tag == tag {
			return l.others[name].Name
		}
	}
	return ""
}

// mayUse is which other layout may use an object of a layout, empty without
// another. A layout of the same name belongs to the other configuration too;
// naming the layout would delete both, so the object must be named.
func (l layouts) mayUse(own naming.Layout, object string) string {
	other, name := l.beside(), own.Name
	if other == "" {
		return ""
	}
	names := slices.Sorted(maps.Keys(l.others))
	if slices.ContainsFunc(names, func(n string) bool { return l.others[n].Name == own.Name }) {
		name = object
	}
	if other == own.Name {
		other = names[0]
	}
	return fmt.Sprintf("the layout %s may use it too; to delete it anyway, give --layout %s", other, name)
}
