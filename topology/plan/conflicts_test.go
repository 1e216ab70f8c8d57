package plan

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Objects that differ alike are named together, and the cure comes once.
func TestConflictsAreShort(t *testing.T) {
	var errs conflicts
	for i := range 11 {
		errs = append(errs, &ConflictError{topology.KindQueue, fmt.Sprintf("q%d", i), "x-queue-type", "quorum", "classic"})
	}
	errs = append(errs, &ConflictError{topology.KindExchange, "e", "type", "topic", "fanout"})
	want := `objects exist with other arguments: queue "q0", queue "q1", queue "q2" and 8 more: x-queue-type: wanted "quorum", found "classic"; ` +
		`exchange "e": type: wanted "topic", found "fanout". Give the new ones other names, or empty and delete the old ones`
	if got := errs.Error(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !errors.Is(errs, ErrConflict) {
		t.Error("it is no ErrConflict")
	}
	if x, ok := errors.AsType[*ConflictError](errs); !ok || x.Name != "q0" {
		t.Errorf("the first is %v", x)
	}
}
