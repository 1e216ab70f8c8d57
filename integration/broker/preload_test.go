package broker

import (
	"strings"
	"testing"
)

// If libeatmydata is installed, a broker syncs to the disk only on request.
func TestHasty(t *testing.T) {
	if len(Hasty().libraries) == 0 {
		t.Skip("skipped: libeatmydata is not installed; `make setup` installs it")
	}
	for _, source := range []Source{Node, Container} {
		t.Run(string(source), func(t *testing.T) {
			needSource(t, source)
			t.Parallel()
			for _, durable := range []bool{false, true} {
				b, err := Start(t.Context(), Options{Source: source, Durable: durable})
				if err != nil {
					t.Fatalf("durable %t: %v", durable, err)
				}
				loaded, err := b.Ctl(t.Context(), "eval", `os:cmd("cat /proc/" ++ os:getpid() ++ "/maps").`)
				if err := b.Close(); err != nil {
					t.Errorf("durable %t: %v", durable, err)
				}
				if hasty := strings.Contains(loaded, "libeatmydata"); err != nil || hasty == durable {
					t.Errorf("durable %t: libeatmydata loaded = %t (error %[4]v), want %[3]t", durable, hasty, !durable, err)
				}
			}
		})
	}
}
