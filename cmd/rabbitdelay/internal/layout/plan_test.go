package layout_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/clitest"
)

// If a queue exists but has no leader, plan reports it as unknown and does not exit with 0.
func TestPlanSaysWhichQueuesDoNotAnswer(t *testing.T) {
	b := clitest.NewBroker(t, amqptest.Options{})
	file := filepath.Join(t.TempDir(), "delays.yaml")
	const yaml = "delay: {bucket: {radices: [3], resolution: 100ms}}\ndestinations: [{queue: orders.expire}]\n"
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := b.Run(t, "apply", "-f", file); r.Code != 0 {
		t.Fatalf("apply -f ...: got %v, want exit code 0", r)
	}
	defer b.RefuseMethod("basic.get", "orders.expire", 541, "noproc")()
	r := b.Run(t, "plan", "-f", file)
	if r.Code != app.ExitUnseen {
		t.Errorf("plan: got exit code %d, want %d", r.Code, app.ExitUnseen)
	}
	for _, line := range []string{"? unknown    queue orders.expire: noproc\n", "queues that do not answer: "} {
		if !strings.Contains(r.Stdout, line) {
			t.Errorf("plan: got %[2]s, want the line %[1]q in it", line, r)
		}
	}
	if strings.Contains(r.Stdout, "queue orders.expire.dead") {
		t.Errorf("plan: got %s, want no line about orders.expire.dead, which answers", r)
	}
}
