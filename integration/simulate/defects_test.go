//go:build !race

package simulate

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What `make simulate-defects` sets.
var plant = flag.String("plant", "", "a pattern of the defects to plant; empty for none")

// defect is a mistake in a copy of the source.
type defect struct {
	name, file string
	was, is    string // text that is there once, and what takes its place
}

var defects = []defect{
	{"no acknowledgement", "amqpx/process.go", "if err := j.raw.Ack(false); err != nil {", "if err := error(nil); err != nil {"},
	{"retries and dead letters dropped", "amqpx/process.go", "err := k.c.sendOne(ctx, m.Message, m.route)", "err := error(nil)"},
	{"one attempt too few", "amqpx/successor.go", "case v.ask == askRetry && d.Attempt < d.MaxAttempts:", "case v.ask == askRetry && d.Attempt+1 < d.MaxAttempts:"},
	{"attempts are not counted", "amqpx/successor.go", "s.Attempt = d.Attempt + 1", "s.Attempt = d.Attempt"},
	{"reason of dead letters lost", "amqpx/successor.go", "s.own[HeaderReason], s.own[HeaderQueue] = reason, k.queue", "s.own[HeaderQueue] = k.queue"},
	{"error of dead letters lost", "amqpx/successor.go", "d.properties().RecordFailure(s.own, d.Snoozes, v.text)\n\treturn s", "d.properties().Record(s.own, d.Snoozes)\n\treturn s"},
	{"early messages not held", "amqpx/hold.go", "at: now.Add(wait), again: again}", "at: now.Add(min(wait, 0)), again: again && wait < 0}"},
	{"refusals taken for confirms", "amqpx/internal/flow/publisher.go", "return Outcome{Kind: Nacked, Err: ErrNacked}", "return Outcome{Kind: Confirmed}"},
	{"lost messages taken for confirmed", "amqpx/internal/flow/next.go", "\tcase Lost:\n", "\tcase Lost:\n\t\tif o.Kind == Lost {\n\t\t\treturn t, Step{Do: Finish}\n\t\t}\n"},
	{"unknown outcomes taken for not sent", "amqpx/internal/flow/next.go", "\tcase Expired:\n\t\tt.Unknown = true\n", "\tcase Expired:\n"},
	{"delays rounded down", "dlx/digits.go", "n = l.roundUp(delay)", "n = max(0, l.roundUp(delay)-1)"},
	{"idempotency without its record", "amqpx/idempotency/handler.go", "\t\t\tif !fresh {", "\t\t\tif !fresh && false {"},
	{"fence without version", "amqpx/schedule/internal/rows/fence.go", `const fenced = "id = ? AND version = ? AND`, `const fenced = "id = ? AND version >= ? AND`},
	{"fence without status", "amqpx/schedule/internal/rows/fence.go", `makeDone+fenced+" AND status = 'pending' AND exchange = ''`, `makeDone+fenced+" AND exchange = ''`},
	{"effects of subscribers not recorded", "amqpx/schedule/fence.go", "return pass{true, row.Created}, passed, err", "return pass{true, row.Created}, err == nil || passed, err"},
	{"failed effects committed", "amqpx/schedule/handler.go", "if err := h.fn.call(withWork(ctx, w), tx, d); err != nil {", "if err := h.fn.call(withWork(ctx, w), tx, d); err != nil && ctx.Err() != nil {"},
	{"changes without fence", "amqpx/schedule/internal/rows/write.go", `" WHERE id = ? AND status = '"+want+"'"`, `" WHERE id = ? AND '"+want+"' <> ''"`},
	{"cancel without effect", "amqpx/schedule/internal/rows/write.go", `set: "status = 'cancelled', finished_at = ?, updated_at = ?", args: []any{now, now}}`, `set: "updated_at = ?", args: []any{now}}`},
	{"moves keep the version", "amqpx/schedule/internal/rows/write.go", `"due_at = ?, updated_at = ?, version = version + 1, " + renewed`, `"due_at = ?, updated_at = ?, " + renewed`},
	{"replacing keeps the version", "amqpx/schedule/internal/rows/unique.go", `set.String() + "version = version + 1, " + renewed`, `set.String() + renewed`},
	{"a pending task of the key is overlooked", "amqpx/schedule/unique.go", "if found {\n\t\t\tresult, err = x.merge(ctx, h)", "if found && h.ID == \"\" {\n\t\t\tresult, err = x.merge(ctx, h)"},
	{"waiting messages sent again", "amqpx/schedule/internal/sweep/evidence.go", "return noGround, false // they wait in the queue", "return queueEmpty, false"},
	{"lost messages not sent again", "amqpx/schedule/internal/sweep/evidence.go", "\tcase e.ready == 0:\n\t\treturn queueEmpty, false", "\tcase e.ready == 0:\n\t\treturn noGround, false"},
	{"claims are not leased", "amqpx/schedule/internal/rows/claim.go", "UPDATE rabbitdelay_tasks SET claimed_until = ? WHERE id ", "UPDATE rabbitdelay_tasks SET claimed_until = ? * 0 WHERE id "},
	{"unsendable tasks stay claimed", "amqpx/schedule/internal/rows/claim.go", "send_failures = send_failures + 1, claimed_until = ?\"", "send_failures = send_failures + 1, claimed_until = ? + 100000000\""},
	{"relays spin on a fault", "amqpx/schedule/internal/relay/relay.go", "if err == nil { // or what is known", "if true { // or what is known"},
}

// Each planted defect is found. It says within how many seeds.
func TestDefects(t *testing.T) {
	if *plant == "" {
		t.Skip("make simulate-defects")
	}
	chosen := regexp.MustCompile(*plant)
	for _, d := range defects {
		if !chosen.MatchString(d.name) {
			continue
		}
		after, err := d.seedsUntilFound(t)
		switch {
		case err != nil:
			t.Errorf("%s: %v", d.name, err)
		case after == 0:
			t.Errorf("%-45s not found in %d seeds", d.name, *seeds)
		default:
			t.Logf("%-45s found after %d seeds", d.name, after)
		}
	}
}

// replay is what a failing seed prints.
var replay = regexp.MustCompile(`replay: make simulate FROM=(\d+)`)

// seedsUntilFound builds the simulation with the defect and runs it; 0: it was not found.
func (d defect) seedsUntilFound(t *testing.T) (n uint64, err error) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		return 0, err
	}
	path, dir := filepath.Join(root, d.file), t.TempDir()
	source, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	if strings.Count(string(source), d.was) != 1 {
		return 0, fmt.Errorf("%s has %q %d times, expected once", d.file, d.was, strings.Count(string(source), d.was))
	}
	planted, overlay, program := filepath.Join(dir, "planted.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "simulate.test")
	if err := os.WriteFile(planted, []byte(strings.Replace(string(source), d.was, d.is, 1)), 0o600); err != nil {
		return 0, err
	}
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{path: planted}})
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(overlay, replaced, 0o600); err != nil {
		return 0, err
	}
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program, ".").CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program, "-test.run=^TestSeeds$", "-test.timeout=30m", "-until-found",
		fmt.Sprintf("-from=%d", *from), fmt.Sprintf("-seeds=%d", *seeds)).CombinedOutput()
	for _, found := range replay.FindAllStringSubmatch(string(out), -1) {
		if seed, _ := strconv.ParseUint(found[1], 10, 64); n == 0 || seed-*from+1 < n {
			n = seed - *from + 1
		}
	}
	if n == 0 && err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return n, nil
}
