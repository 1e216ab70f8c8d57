package rows

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// RenewRelay updates the row of a relay, and deletes the rows of relays that have not been seen since a given time.
func TestRelays(t *testing.T) {
	x := newTable(t)
	shown := func() string {
		list, err := x.Relays(t.Context())
		check(t, err)
		var names []string
		for _, r := range list {
			names = append(names, fmt.Sprintf("%s %s %v %v", r.Name, r.Version, r.Started.Sub(at(0)), r.Seen.Sub(at(0))))
		}
		return strings.Join(names, ", ")
	}
	renew := func(id string, seen, forget time.Duration) {
		check(t, x.RenewRelay(t.Context(), id, Relay{Name: "host:" + id, Version: "v1", Started: at(0), Seen: at(seen)}, at(forget)))
	}
	renew("1", time.Minute, 0)
	renew("2", 2*time.Minute, 0)
	want(t, "two relays", shown(), "host:2 v1 0s 2m0s, host:1 v1 0s 1m0s")
	renew("1", 3*time.Minute, time.Hour)
	want(t, "after a renewal", shown(), "host:1 v1 0s 3m0s, host:2 v1 0s 2m0s")
	renew("3", 4*time.Minute, 3*time.Minute)
	want(t, "with a new relay", shown(), "host:3 v1 0s 4m0s, host:1 v1 0s 3m0s")
	check(t, x.RemoveRelay(t.Context(), "3"))
	want(t, "after a relay was removed", shown(), "host:1 v1 0s 3m0s")
}

// CheckRights succeeds for a user with all permissions, and changes no task.
func TestCheckRights(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("a", 0))
	check(t, x.db.CheckRights(t.Context()))
	x.wantTask("a", Pending, 1)
}

// Purge deletes finished tasks with their tags after a while, and failed ones later than others. It also deletes old
// records of effects that have no lease.
func TestPurge(t *testing.T) {
	x := newTable(t)
	for _, status := range Statuses {
		for _, ago := range []time.Duration{0, 2 * time.Hour, 4 * time.Hour} {
			task := toQ(fmt.Sprint(status, ago), 0)
			task.Tags = []string{"t"}
			x.insert(task)
			if status != Pending && status != Running {
				x.end(task.ID, status, ms(-ago))
			}
		}
	}
	for id, lease := range map[string]time.Duration{"old": 0, "leased": time.Hour} {
		k := EffectKey{id, 1, 1, "q"}
		_, err := x.LockRecord(t.Context(), k, ms(-4*time.Hour))
		check(t, err)
		check(t, x.BeginAttempt(t.Context(), k, 1, "token", ms(lease-time.Minute), ms(-4*time.Hour)))
	}
	n, err := x.db.Purge(t.Context(), Keep{Finished: time.Hour, Failed: 3 * time.Hour, Batch: 2}, at(0))
	check(t, err)
	want(t, "deleted", n, "7")
	left, err := x.Count(t.Context(), Filter{Tag: "t"})
	check(t, err)
	want(t, "left", left, "11")
	failed, err := x.Count(t.Context(), Filter{Status: Failed})
	check(t, err)
	want(t, "failed ones", failed, "2")
	effects, err := x.texts(t.Context(), "SELECT task_id FROM rabbitdelay_effects")
	check(t, err)
	want(t, "records", effects, "[leased]")
}

// A clock that is passed to Open replaces the database's clock.
func TestClock(t *testing.T) {
	x := newTable(t)
	c, err := Open(x.db.DB, sqldb.PostgreSQL, func() time.Time { return at(time.Hour) }).Conn(t.Context())
	check(t, err)
	now, err := c.Clock(t.Context())
	check(t, err)
	want(t, "the clock", now.Sub(at(0)), "1h0m0s")
}

// Each dialect uses the locking clauses that its database supports.
func TestLocks(t *testing.T) {
	for d, expected := range map[sqldb.Dialect]string{
		sqldb.SQLite:     "||||",
		sqldb.PostgreSQL: "| FOR UPDATE| FOR UPDATE SKIP LOCKED|| FOR SHARE",
		sqldb.MySQL:      "| FOR UPDATE| FOR UPDATE SKIP LOCKED| LOCK IN SHARE MODE| LOCK IN SHARE MODE",
	} {
		c := Conn{dialect: d}
		var got []string
		for _, l := range []Lock{Unlocked, Exclusive, SkipLocked, Current, Shared} {
			got = append(got, c.lock(l))
		}
		want(t, string(d), strings.Join(got, "|"), expected)
		want(t, string(d)+": fresh reads", c.FreshReads() != nil, strconv.FormatBool(d == sqldb.MySQL))
		want(t, string(d)+": read committed", c.readCommitted() != nil, strconv.FormatBool(d != sqldb.SQLite))
	}
}
