package suite

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/binary"
)

// Ran is the result of running the command line.
type Ran struct{ binary.Result }

// Last decodes the last line, which must be a JSON object with exactly the given keys in that order.
func (r Ran) Last(t *testing.T, keys ...string) map[string]any {
	t.Helper()
	lines := r.Lines()
	line := lines[len(lines)-1]
	dec := json.NewDecoder(strings.NewReader(line))
	var m map[string]any
	if err := dec.Decode(&m); err != nil || dec.More() {
		t.Fatalf("got the last line %q (error %v), want one JSON object\n%s", line, err, r)
	}
	at := 0
	for _, k := range keys {
		next := strings.Index(line, `"`+k+`":`)
		if next < at {
			t.Fatalf("got the last line %s, want the keys %v in this order", line, keys)
		}
		at = next
	}
	if len(m) != len(keys) {
		t.Fatalf("got the last line %s, want no keys other than %v", line, keys)
	}
	return m
}

// RunCLI runs rabbitdelay with args.
func RunCLI(ctx context.Context, args ...string) Ran { return Ran{binary.Run(ctx, args...)} }

// Command returns a command that runs rabbitdelay with args, which a test can start and kill.
func Command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c, err := binary.Command(t.Context(), args...)
	MustSucceed(t, err)
	return c
}
