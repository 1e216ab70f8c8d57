package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

// Objects returns the names of the queues and exchanges of a virtual host, without the predefined ones.
func (v *Vhost) Objects(t *testing.T) []string {
	t.Helper()
	current, err := v.Mgmt.Inspect(t.Context(), topology.Topology{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range current.Queues {
		names = append(names, "queue "+name)
	}
	for name := range current.Exchanges {
		if name != "" && !strings.HasPrefix(name, "amq.") {
			names = append(names, "exchange "+name)
		}
	}
	slices.Sort(names)
	return names
}

// CommandOn returns a function that runs the command line with a configuration file on a virtual host.
func CommandOn(t *testing.T, v *Vhost, yaml string) func(args ...string) Ran {
	t.Helper()
	return CommandWith(t, v, yaml, v.Mgmt.Endpoint())
}

// CommandWith is the same as CommandOn, with a management API at another address.
func CommandWith(t *testing.T, v *Vhost, yaml, management string) func(args ...string) Ran {
	t.Helper()
	file := filepath.Join(t.TempDir(), "delays.yaml")
	yaml = fmt.Sprintf("%sbroker: {management_url: %q}\n", yaml, management)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) Ran {
		return RunCLI(t.Context(), append(args, "-f", file, "--url", v.URL)...)
	}
}
