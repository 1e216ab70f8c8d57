package topology

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rabbitdelay/rabbitdelay/internal/argument"
)

// Mismatch is an argument or property that differs between two descriptions of an object. Want and Have are Go values,
// nil for an absent argument, or the broker's text for the value.
type Mismatch struct {
	Argument string
	Want     any
	Have     any
}

func (m Mismatch) String() string {
	return fmt.Sprintf("%s: wanted %s, found %s", m.Argument, argument.Format(m.Want), argument.Format(m.Have))
}

// DiffArguments returns the arguments that differ between two tables, sorted by name.
func DiffArguments(want, have map[string]any) []Mismatch {
	var diffs []Mismatch
	names := slices.Sorted(maps.Keys(want))
	for k := range have {
		if _, ok := want[k]; !ok {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	for _, k := range names {
		w, inWant := want[k]
		h, inHave := have[k]
		if inWant != inHave || !argument.Equal(w, h) {
			diffs = append(diffs, Mismatch{Argument: k, Want: w, Have: h})
		}
	}
	return diffs
}

// DiffProperty compares one property of an object. It returns nil if the values are equal.
func DiffProperty(name string, want, have any) []Mismatch {
	if argument.Equal(want, have) {
		return nil
	}
	return []Mismatch{{Argument: name, Want: want, Have: have}}
}
