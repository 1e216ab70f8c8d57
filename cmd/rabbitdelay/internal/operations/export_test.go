package operations_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/export"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
	"github.com/rabbitdelay/rabbitdelay/internal/report"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// After rabbitmqctl has imported the exported definitions, the plan is empty.
func TestExportedDefinitionsAreComplete(t *testing.T) {
	t.Parallel()
	suite.OnSomeVhosts(t, func(t *testing.T, v *suite.Vhost) {
		want := buckets(t, "binary", topology.Quorum)
		text, err := export.Definitions(want, v.Name)
		if err != nil {
			t.Fatal(err)
		}
		var small bytes.Buffer // compressed, because the length of a command line is limited
		z := gzip.NewWriter(&small)
		if _, err := z.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		file := "/tmp/" + v.Name + ".json" // written by the broker, which may run in a container
		write := fmt.Sprintf(`ok = file:write_file(%q, zlib:gunzip(base64:decode(<<%q>>))).`, file, base64.StdEncoding.EncodeToString(small.Bytes()))
		for _, args := range [][]string{{"eval", write}, {"import_definitions", file}, {"eval", fmt.Sprintf("file:delete(%q).", file)}} {
			if out, err := v.Broker.Ctl(t.Context(), args...); err != nil {
				t.Fatalf("rabbitmqctl %s: %.2000v\n%s", args[0], err, out)
			}
		}
		p, err := v.Managed().Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		if !p.Empty() || p.Count(plan.ActionUnverified) > 0 {
			var text strings.Builder
			_ = p.Render(&text, report.Style{}, false)
			t.Errorf("the plan after the import: got\n%s\nwant an empty plan without unverified objects", text.String())
		}
	})
}
