package schedule

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A relay is seen while it runs, one that died keeps its last instant for a week, and
// one that ended leaves nothing.
func TestRelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, &recorder{}, Config{})
		defer func() { check(t, db.Close()) }()
		relays := func() []Relay {
			t.Helper()
			list, err := s.Relays(t.Context())
			check(t, err)
			return list
		}
		dead := time.Now().Add(-time.Hour)
		_, err := db.ExecContext(t.Context(), "INSERT INTO rabbitdelay_relays (id, name, started_at, seen_at) VALUES ('old', 'old:1', 1, 1), ('dead', 'dead:1', 1, ?)", dead.UnixMilli())
		check(t, err)
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(time.Hour)
		got := relays()
		if len(got) != 2 || !strings.HasSuffix(got[0].Name, ":"+strconv.Itoa(os.Getpid())) || !got[0].Running(time.Now()) || got[0].Started.Sub(began).Abs() > time.Second {
			t.Errorf("%+v", got)
		}
		if d := got[1]; d.Name != "dead:1" || d.Running(time.Now()) || !d.Seen.Equal(dead.Truncate(time.Millisecond)) {
			t.Errorf("%+v", d)
		}
		for want, list := range map[string][]Relay{
			"which relays run on this database is unknown": nil, "no relay runs on this database": {},
			"no heartbeat since " + dead.UTC().Format(time.RFC3339) + "; the process is stopped, hung or cut off; look at host dead, pid 1": {got[1]},
			"a relay runs; its log says why a task is not sent; look at host a, pid 2":                                                      {{Name: "a:2", Seen: time.Now().Add(time.Minute)}, got[1]},
			"2 relays run; their logs say why a task is not sent":                                                                           {{Name: "a:2", Seen: time.Now().Add(-3 * time.Second)}, {Name: "b:2", Seen: time.Now().Add(-RelaySilence)}},
		} {
			if got := WhoSends(list, time.Now()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		}
		if d := got[1]; d.Silent(time.Now()) != d.Silent(time.Now().Add(time.Hour)) {
			t.Error("the text of a silence changes while it lasts")
		}
		stop()
		check(t, <-done)
		if got := relays(); len(got) != 1 {
			t.Errorf("after its end: %+v", got)
		}
	})
}

// A relay without the table, or a right to it, relays, and is well.
func TestRelayThatCannotBeSeen(t *testing.T) {
	var r recorder
	bubble(t, &r, Config{}, func(t *testing.T, s *Store, db *sql.DB) {
		_, err := db.ExecContext(t.Context(), "DROP TABLE rabbitdelay_relays")
		check(t, err)
		<-time.After(time.Minute)
		check(t, s.Schedule(t.Context(), NoTx, near("1")))
		<-time.After(time.Second)
		if got := r.receipts(); len(got) != 1 || s.Health() != nil {
			t.Errorf("%d sent; %v", len(got), s.Health())
		}
		if _, err := s.Relays(t.Context()); err == nil || errors.Is(err, ErrDenied) {
			t.Errorf("without the table: %v", err)
		}
	})
}
