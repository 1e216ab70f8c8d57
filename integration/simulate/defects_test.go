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
	{"no acknowledgement", "amqpx/settle.go", "if err := j.raw.Ack(false); err != nil {", "if err := error(nil); err != nil {"},
	{"retries and dead letters dropped", "amqpx/settle.go", "err := k.c.sendOne(ctx, m.Message, m.route)", "err := error(nil)"},
	{"one attempt too few", "amqpx/successor.go", "case v.ask == askRetry && d.Attempt < d.MaxAttempts:", "case v.ask == askRetry && d.Attempt+1 < d.MaxAttempts:"},
	{"attempts are not counted", "amqpx/successor.go", "s.Attempt++", "s.Attempt += 0"},
	{"reason of dead letters lost", "amqpx/successor.go", "s.own[HeaderReason], s.own[HeaderQueue] = reason, k.queue", "s.own[HeaderQueue] = k.queue"},
	{"error of dead letters lost", "amqpx/successor.go", "if s.outcome == OutcomeRetried || s.outcome == OutcomeDeadLettered {", "if s.outcome == OutcomeRetried {"},
	{"early messages not held", "amqpx/intake.go", "at: time.Now().Add(wait), again: again,", "at: time.Now().Add(min(wait, 0)), again: again && wait < 0,"},
	{"refusals taken for confirms", "amqpx/internal/flow/publisher.go", "return Outcome{Kind: Nacked, Err: ErrNacked}", "return Outcome{Kind: Confirmed}"},
	{"lost messages taken for confirmed", "amqpx/internal/flow/next.go", "\tcase Lost:\n", "\tcase Lost:\n\t\tif o.Kind == Lost {\n\t\t\treturn t, Step{Do: Finish}\n\t\t}\n"},
	{"unknown outcomes taken for not sent", "amqpx/internal/flow/next.go", "\tcase Expired:\n\t\tt.Unknown = true\n", "\tcase Expired:\n"},
	{"leads taken twice", "amqpx/prepare.go", "max(asked-lead, 0)", "max(asked-2*lead, 0)"},
	{"idempotency without its record", "amqpx/idempotency/handler.go", "\t\t\tif n != 1 {", "\t\t\tif n != 1 && false {"},
	{"fence without version", "amqpx/schedule/internal/rows/fence.go", `const fenced = "id = ? AND version = ? AND`, `const fenced = "id = ? AND version >= ? AND`},
	{"fence without status", "amqpx/schedule/internal/rows/fence.go", `makeDone+fenced+" AND status = 'pending' AND exchange = ''`, `makeDone+fenced+" AND exchange = ''`},
	{"effects of subscribers not recorded", "amqpx/schedule/fence.go", "return pass{true, row.Created}, passed, err", "return pass{true, row.Created}, err == nil || passed, err"},
	{"failed effects committed", "amqpx/schedule/handler.go", "if err := h.fn.call(withWork(ctx, w), tx, d); err != nil {", "if err := h.fn.call(withWork(ctx, w), tx, d); err != nil && ctx.Err() != nil {"},
	{"changes without fence", "amqpx/schedule/internal/rows/write.go", `" WHERE id = ? AND status = '"+want+"'"`, `" WHERE id = ? AND '"+want+"' <> ''"`},
	{"cancel without effect", "amqpx/schedule/internal/rows/write.go", `set: "status = 'cancelled', finished_at = ?, updated_at = ?", args: []any{now, now}}`, `set: "updated_at = ?", args: []any{now}}`},
	{"moves keep the version", "amqpx/schedule/internal/rows/write.go", `"due_at = ?, updated_at = ?, version = version + 1, " + renewed`, `"due_at = ?, updated_at = ?, " + renewed`},
	{"a pending task of the key is overlooked", "amqpx/schedule/unique.go", "if found {\n\t\t\tresult, err = x.merge(ctx, h)", "if found && h.ID == \"\" {\n\t\t\tresult, err = x.merge(ctx, h)"},
	{"waiting messages sent again", "amqpx/schedule/internal/sweep/evidence.go", "return noGround, false // they wait in the queue", "return queueEmpty, false"},
	{"lost messages not sent again", "amqpx/schedule/internal/sweep/evidence.go", "\tcase e.ready == 0:\n\t\treturn queueEmpty, false", "\tcase e.ready == 0:\n\t\treturn noGround, false"},
	{"claims are not leased", "amqpx/schedule/internal/rows/claim.go", "UPDATE rabbitdelay_tasks SET claimed_until = ? WHERE id ", "UPDATE rabbitdelay_tasks SET claimed_until = ? * 0 WHERE id "},
	{"unsendable tasks stay claimed", "amqpx/schedule/internal/rows/claim.go", "send_failures = send_failures + 1, claimed_until = ?\"", "send_failures = send_failures + 1, claimed_until = ? + 100000000\""},
	{"relays spin on a fault", "amqpx/schedule/internal/relay/relay.go", "if err == nil { // or what is known", "if true { // or what is known"},
	{"keys pushed back without end", "amqpx/schedule/unique.go", "h.Created+x.u.MaxWait.Milliseconds(), rows.MaxDue)", "rows.MaxDue)"},
	{"cooldowns overlooked", "amqpx/schedule/internal/rows/unique.go", "status = 'done' AND finished_at > ?)", "status = 'done' AND finished_at > ? + 100000000)"},
	{"pauses overlooked", "amqpx/schedule/internal/rows/gate.go", "return !g.PausedAt.IsZero()", "return false"},
	{"messages of paused tasks not taken back", "amqpx/schedule/internal/relay/gate.go", "\t\tif x.Paused() {", "\t\tif x.Paused() && x.PerSecond < 0 {"},
	{"ceilings forgotten after each claim", "amqpx/schedule/internal/rows/gate.go", "g.Free, g.SpreadFree, g.Queue, g.Exchange)\n\treturn err", "0, g.SpreadFree, g.Queue, g.Exchange)\n\treturn err"},
	{"expired tasks have effects", "amqpx/schedule/internal/rows/dialect.go", "return \"(expires_after IS NULL OR", "return \"(expires_after > 0 OR expires_after IS NULL OR"},
	{"tasks expire early", "amqpx/schedule/internal/relay/claim.go", "from := t.DeliverAt", "from := t.CreatedAt"},
	{"retry delays ignored", "amqpx/successor.go", "s.Delay = k.nextDelay(d, v)", "s.Delay = 0 * k.nextDelay(d, v)"},
	{"snoozes count as attempts", "amqpx/successor.go", "\t\tsnoozes++\n", "\t\tsnoozes++\n\t\ts.Attempt++\n"},
	{"leases overlooked", "amqpx/schedule/attempt.go", "case rest > 0:", "case rest > time.Hour:"},
	{"leases not renewed", "amqpx/schedule/lease.go", "a.clock.Add(time.Since(a.begun)+a.lease)", "a.clock.Add(a.lease)"},
	{"a key for each attempt", "amqpx/schedule/lease.go", "a.Task, a.Created, a.Queue)", "a.Task, a.Created+int64(a.number), a.Queue)"},
	{"answers of a batch mixed up", "amqpx/batch.go", "failed[i] = f", "failed[len(msgs)-1-i] = f"},
	{"messages handed back are acknowledged", "amqpx/intake.go", "_ = raw.Nack(false, true) // or", "_ = raw.Ack(false) // or"},
	{"failed commits taken for done", "amqpx/internal/sqldb/tx.go", "\treturn fmt.Errorf(\"%w: %w\", ErrCommit, err)", "\treturn nil"},
	{"members of a group left waiting", "amqpx/internal/sqldb/gather.go", "range group[1:] {", "range group[2:] {"},
	{"headers lost on retries", "amqpx/delivery.go", "Headers: d.Headers, Version", "Version"},
	{"every other occurrence skipped", "amqpx/schedule/internal/recur/plan.go", "append(list, last), p.table.Next(last)", "append(list, last), p.table.Next(p.table.Next(last))"},
	{"tasks of one instant counted once", "amqpx/schedule/internal/rows/count.go", "SELECT queue, status, COUNT(*)", "SELECT queue, status, COUNT(DISTINCT due_at)"},
	{"dead letters that stay are removed", "amqpx/inspect/requeue_send.go", "slices.DeleteFunc(slices.Clone(round), func(l *letter) bool { return l.fate.Outcome == RequeueStayed })", "slices.Clone(round)"},
	{"dead letters that went stay", "amqpx/inspect/requeue_send.go", "r.src.acknowledge(gone)", "r.src.acknowledge(gone[:0])"},
	{"failures revive cancelled tasks", "amqpx/schedule/internal/rows/attempt.go", "status IN ('pending', 'running')\"+noLease", "status <> 'done'\"+noLease"},
	{"layouts share a tag", "dlx/layout.go", "if resolution != defaultResolution(name) {", "if resolution != defaultResolution(name) && name == \"\" {"},
	{"clocks not compared with the database's", "amqpx/schedule/internal/pace/clock.go", "return x.Skew.Round(time.Millisecond)", "return 0 * x.Skew"},
	{"leads end by any clock", "amqpx/internal/lasthop/judge.go", "return a.rest(due), false // a clock is wrong", "return max(0, early), false"},
	{"the clock of an instant forgotten", "amqpx/delivery.go", "a.Offset = time.Duration(offset)", "a.Offset = 0 * time.Duration(offset)"},
	{"tasks are due by the handler's clock", "amqpx/schedule/handler.go", "d.DueAt.Sub(h.clock.Now()) > clockSlack", "d.DueAt.Sub(h.clock.Local()) > clockSlack"},
	{"connections left open", "amqpx/internal/declare/conns.go", "p.begin(func(context.Context) { wire.CloseConn(d.conn) })", "p.begin(func(context.Context) {})"},
}

// The source still has the place of each defect.
func TestDefectsCanBePlanted(t *testing.T) {
	for _, d := range defects {
		if _, err := d.planted(); err != nil {
			t.Errorf("%s: %v", d.name, err)
		}
	}
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

func (d defect) path() string { return filepath.Join("..", "..", d.file) }

// planted returns the file with the defect.
func (d defect) planted() ([]byte, error) {
	source, err := os.ReadFile(d.path())
	if n := strings.Count(string(source), d.was); err == nil && n != 1 {
		err = fmt.Errorf("%s has %q %d times, expected once", d.file, d.was, n)
	}
	return []byte(strings.Replace(string(source), d.was, d.is, 1)), err
}

// seedsUntilFound builds the simulation with the defect and runs it; 0: it was not found.
func (d defect) seedsUntilFound(t *testing.T) (n uint64, err error) {
	t.Helper()
	path, err := filepath.Abs(d.path())
	if err != nil {
		return 0, err
	}
	source, err := d.planted()
	if err != nil {
		return 0, err
	}
	dir := t.TempDir()
	planted, overlay, program := filepath.Join(dir, "planted.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "simulate.test")
	if err := os.WriteFile(planted, source, 0o600); err != nil {
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
