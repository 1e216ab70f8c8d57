package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/cli"
)

// Ran is the result of running the command line.
type Ran struct {
	Code           int
	Stdout, Stderr string
}

func (r Ran) String() string {
	return fmt.Sprintf("exit %d\nstandard output:\n%sstandard error:\n%s", r.Code, r.Stdout, r.Stderr)
}

// Lines returns the lines of standard output.
func (r Ran) Lines() []string { return strings.Split(strings.TrimSuffix(r.Stdout, "\n"), "\n") }

// Last decodes the last line, which must be a JSON object with exactly the given keys in that order.
func (r Ran) Last(t *testing.T, keys ...string) map[string]any {
	t.Helper()
	lines := r.Lines()
	line := lines[len(lines)-1]
	dec := json.NewDecoder(strings.NewReader(line))
	var m map[string]any
	if err := dec.Decode(&m); err != nil || dec.More() {
		t.Fatalf("the last line %q is not one JSON object: %v\n%s", line, err, r)
	}
	at := 0
	for _, k := range keys {
		next := strings.Index(line, `"`+k+`":`)
		if next < at {
			t.Fatalf("the last line %s does not have the keys %v in this order", line, keys)
		}
		at = next
	}
	if len(m) != len(keys) {
		t.Fatalf("the last line %s has other keys than %v", line, keys)
	}
	return m
}

// RunCLI runs rabbitdelay with args in this process.
func RunCLI(ctx context.Context, args ...string) Ran {
	var out, errs strings.Builder
	code := cli.Run(ctx, args, strings.NewReader(""), &out, &errs)
	return Ran{code, out.String(), errs.String()}
}
