package plan

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The error lists objects with the same difference together, and says only once what to do.
func TestConflictsAreShort(t *testing.T) {
	var errs conflicts
	for i := range 11 {
		errs = append(errs, &topology.ConflictError{Kind: topology.KindQueue, Name: fmt.Sprintf("q%d", i), Argument: "x-queue-type", Want: "quorum", Have: "classic"})
	}
	errs = append(errs, &topology.ConflictError{Kind: topology.KindExchange, Name: "e", Argument: "type", Want: "topic", Have: "fanout"})
	want := `objects exist with different arguments: queue "q0", queue "q1", queue "q2" and 8 more: x-queue-type: wanted "quorum", found "classic"; ` +
		`exchange "e": type: wanted "topic", found "fanout". Give the new objects other names, or empty and delete the old ones`
	if got := errs.Error(); got != want {
		t.Errorf("the text of the conflicts:\ngot  %s\nwant %s", got, want)
	}
	if !errors.Is(errs, topology.ErrConflict) {
		t.Errorf("the conflicts: got %v, want an error that wraps topology.ErrConflict", errs)
	}
	if x, ok := errors.AsType[*topology.ConflictError](errs); !ok || x.Name != "q0" {
		t.Errorf(`errors.AsType: got %v, want the first *topology.ConflictError, whose Name is "q0"`, x)
	}
}
