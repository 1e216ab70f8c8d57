package cli

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/app"
	"github.com/rabbitdelay/rabbitdelay/config"
)

// The database alone tells which relays run, and since when each was seen.
func TestStatusOfRelays(t *testing.T) {
	b := newByHand(t)
	b.Close()
	dbURL := "sqlite:" + filepath.Join(t.TempDir(), "tasks.db")
	if code, _, stderr := run(t, "", "migrate", "--db", dbURL); code != 0 {
		t.Fatal(stderr)
	}
	show := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := b.run(t, append([]string{"status", "--db", dbURL}, args...)...)
		if code != app.ExitUnseen { // the broker is down
			t.Fatalf("exit %d, %s", code, stderr)
		}
		return stdout
	}
	expect := func(pattern string) {
		t.Helper()
		if got := show(); !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("%s\nexpected %s", got, pattern)
		}
	}
	expect(`(?m)^no relay runs on this database$`)
	db, _, err := config.OpenDB(config.URL(dbURL))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	exec("INSERT INTO rabbitdelay_relays (id, name, started_at, seen_at) VALUES ('a', 'shop:1', 1, ?)", now.Add(-3*time.Hour).UnixMilli())
	expect(`shop:1 +unknown .* 3h ago: (no heartbeat since [0-9T:-]+Z; the process is stopped, hung or cut off; look at host shop, pid 1)\nno heartbeat since [0-9T:-]+Z; the process is stopped, hung or cut off; look at host shop, pid 1\n`)
	exec("INSERT INTO rabbitdelay_relays (id, name, version, started_at, seen_at) VALUES ('b', 'shop:2', 'v1.2.3', 1, ?)", now.Add(time.Minute).UnixMilli())
	expect(`RELAY +VERSION +STARTED +LAST SEEN\nshop:2 +v1\.2\.3 +1970-\S+ +in [^\n]*\nshop:1 .*\n\n`)
	var s status.Status
	if err := json.Unmarshal([]byte(show("--json")), &s); err != nil || len(s.Tasks.Relays) != 2 || s.Tasks.Relays[0].Version != "v1.2.3" {
		t.Errorf("%v, %+v", err, s.Tasks)
	}
	exec("DROP TABLE rabbitdelay_relays")
	expect(`(?s)NOT SEEN\n.*relays: reading relays: `)
}
