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

	"github.com/rabbitdelay/rabbitdelay/internal/rows"
)

// relaysOf reads the rows of the relays.
func relaysOf(t *testing.T, s *Store) ([]rows.Relay, error) {
	t.Helper()
	c, err := s.db.Conn(t.Context())
	check(t, err)
	return c.Relays(t.Context())
}

// A relay is listed while it runs. A relay that died stays listed for a week with the time at which it was last seen. A
// relay that stopped properly is removed.
func TestRelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, &recorder{}, Config{VirtualTime: true})
		defer func() { check(t, db.Close()) }()
		relays := func() []rows.Relay {
			t.Helper()
			list, err := relaysOf(t, s)
			check(t, err)
			return list
		}
		dead := time.Now().Add(-time.Hour)
		_, err := db.ExecContext(t.Context(),
			"INSERT INTO rabbitdelay_relays (id, name, started_at, seen_at) VALUES ('old', 'old:1', 1, 1), ('dead', 'dead:1', 1, ?)",
			dead.UnixMilli())
		check(t, err)
		began := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(time.Hour)
		got := relays()
		if len(got) != 2 {
			t.Fatalf("Relays: got %d relays, want 2: %+v", len(got), got)
		}
		if suffix := ":" + strconv.Itoa(os.Getpid()); !strings.HasSuffix(got[0].Name, suffix) {
			t.Errorf("this relay is named %q, want it to end with %s", got[0].Name, suffix)
		}
		if age := time.Since(got[0].Seen); age > 10*time.Second {
			t.Errorf("this relay was seen %v ago, want at most 10s", age)
		}
		if got[0].Started.Sub(began).Abs() > time.Second {
			t.Errorf("this relay started at %v, want %v", got[0].Started, began)
		}
		if got[1].Name != "dead:1" {
			t.Errorf("the other relay is named %q, want dead:1", got[1].Name)
		}
		if want := dead.Truncate(time.Millisecond); !got[1].Seen.Equal(want) {
			t.Errorf("the dead relay was seen at %v, want %v", got[1].Seen, want)
		}
		stop()
		check(t, <-done)
		if got := relays(); len(got) != 1 {
			t.Errorf("Relays after this relay stopped: got %+v, want one relay", got)
		}
	})
}

// Without the table of relays, a relay still sends tasks and is healthy.
func TestRelayThatCannotBeSeen(t *testing.T) {
	var r recorder
	bubble(t, &r, Config{}, func(t *testing.T, s *Store, db *sql.DB) {
		_, err := db.ExecContext(t.Context(), "DROP TABLE rabbitdelay_relays")
		check(t, err)
		<-time.After(time.Minute)
		check(t, s.Schedule(t.Context(), NoTx, near("1")))
		<-time.After(time.Second)
		if got := r.receipts(); len(got) != 1 || s.Health() != nil {
			t.Errorf("%d tasks were sent and Health is %v, want 1 and nil", len(got), s.Health())
		}
		if _, err := relaysOf(t, s); err == nil || errors.Is(err, ErrDenied) {
			t.Errorf("reading the relays without their table: got %v, want an error other than ErrDenied", err)
		}
	})
}
