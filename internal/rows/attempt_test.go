package rows

import (
	"fmt"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// Only the attempt that has the token of a record can renew, end or complete its lease.
func TestAttempts(t *testing.T) {
	x := newTable(t)
	k := EffectKey{Task: "a", Created: start, Version: 1, Queue: "q"}
	record := func() Record {
		t.Helper()
		r, err := x.LockRecord(t.Context(), k, start)
		check(t, err)
		return r
	}
	want(t, "a new record", record(), "{0  0 false}")
	check(t, x.BeginAttempt(t.Context(), k, 1, "first", ms(time.Minute), start))
	want(t, "a running attempt", record(), fmt.Sprintf("{1 first %d false}", ms(time.Minute)))
	renewed, err := x.RenewLease(t.Context(), k, "first", ms(time.Hour))
	check(t, err)
	want(t, "renewed", renewed, "true")
	renewed, err = x.RenewLease(t.Context(), k, "another", ms(2*time.Hour))
	check(t, err)
	want(t, "renewed with another token", renewed, "false")
	check(t, x.EndAttempt(t.Context(), k, 5, "another"))
	want(t, "ended with another token", record(), fmt.Sprintf("{1 first %d false}", ms(time.Hour)))
	check(t, x.EndAttempt(t.Context(), k, 1, "first"))
	want(t, "ended", record(), "{1  0 false}")
	check(t, x.BeginAttempt(t.Context(), k, 2, "second", ms(time.Minute), start))
	for token, complete := range map[string]string{"first": "false", "second": "true"} {
		done, err := x.CompleteLease(t.Context(), k, token, start)
		check(t, err)
		want(t, "completed with the token "+token, done, complete)
	}
	want(t, "a complete record", record(), "{2 second 0 true}")
	renewed, err = x.RenewLease(t.Context(), k, "second", ms(time.Hour))
	check(t, err)
	want(t, "renewed after it is complete", renewed, "false")
	done, err := x.CompleteLease(t.Context(), k, "second", start)
	check(t, err)
	want(t, "completed twice", done, "false")
}

// A task is marked as running when its lease starts, and as done when the work of its current version ends.
func TestRunning(t *testing.T) {
	x := newTable(t)
	x.insert(toQ("a", 0), toE("b", "k", 0), toQ("c", 0))
	x.set("b", "status = 'failed', finished_at = 1")
	x.end("c", Failed, 1)
	for _, id := range []string{"a", "b", "c"} {
		check(t, x.StartRunning(t.Context(), Fence{ID: id, Version: 1, Due: start}, start))
	}
	x.wantTask("a", Running, 1)
	x.wantTask("b", Running, 1)
	x.wantTask("c", Failed, 1)
	n, err := x.CountRunning(t.Context())
	check(t, err)
	want(t, "running", n, "2")
	check(t, x.EndRunning(t.Context(), EffectKey{Task: "a", Created: start, Version: 2}, start))
	x.wantTask("a", Running, 1)
	check(t, x.EndRunning(t.Context(), EffectKey{Task: "a", Created: start, Version: 1}, start))
	x.wantTask("a", Done, 1)
}

// leased starts an attempt of a running task with a unique key, under a lease of one minute.
func leased(t *testing.T) (*table, EffectKey) {
	t.Helper()
	x := newTable(t)
	task := toQ("a", 0)
	task.UniqueKey = "k"
	x.insert(task)
	check(t, x.StartRunning(t.Context(), Fence{ID: "a", Version: 1, Due: start}, start))
	k := EffectKey{Task: "a", Created: start, Version: 1, Queue: "q"}
	_, err := x.LockRecord(t.Context(), k, start)
	check(t, err)
	check(t, x.BeginAttempt(t.Context(), k, 1, "token", ms(time.Minute), start))
	return x, k
}

// A task whose lease has expired becomes pending again. If another task with its key is pending, it is cancelled
// instead as soon as that task is due, and until then stays running.
func TestEndedLeases(t *testing.T) {
	for name, c := range map[string]struct {
		rival      bool
		due        time.Duration
		status, is string // what EndLease returns, and the status of the task afterwards
	}{
		"alone":                  {status: Pending, is: Pending},
		"next to a due task":     {rival: true, due: time.Minute, status: Cancelled, is: Cancelled},
		"next to a task for now": {rival: true, status: Cancelled, is: Cancelled},
		"next to a later task":   {rival: true, due: time.Minute + time.Millisecond, is: Running},
	} {
		t.Run(name, func(t *testing.T) {
			x, _ := leased(t)
			if c.rival {
				other := toQ("b", 0)
				other.UniqueKey, other.DeliverAt = "k", time.UnixMilli(ms(c.due))
				x.insert(other)
			}
			for after, expected := range map[time.Duration]string{time.Minute - time.Millisecond: "[]", time.Minute: "[a]"} {
				ids, err := x.EndedLeases(t.Context(), ms(after))
				check(t, err)
				want(t, "expired leases after "+after.String(), ids, expected)
			}
			status, err := x.EndLease(t.Context(), "a", start)
			check(t, err)
			want(t, "status after an early end", status, "")
			status, err = x.EndLease(t.Context(), "a", ms(time.Minute))
			check(t, err)
			want(t, "status", status, c.status)
			x.wantTask("a", c.is, 1)
			status, err = x.EndLease(t.Context(), "a", ms(time.Minute))
			check(t, err)
			want(t, "status after a second end", status, "")
		})
	}
}

// A failure is recorded unless the task already has another outcome, or another attempt is running.
func TestRecordFailure(t *testing.T) {
	for name, tt := range map[string]struct {
		f      Failure
		token  string
		before string // state of the row before the statement
		want   string // status, attempts, resend_at, last_error
	}{
		"retry":                  {Failure{Counts: true, Attempts: 2, Cause: "why", ResendAt: 7}, "token", "attempts = 1", "pending 2 7 why"},
		"late delivery":          {Failure{Counts: true, Attempts: 2, Cause: "why"}, "token", "attempts = 3", "pending 3 0 why"},
		"later resend time kept": {Failure{ResendAt: 7}, "token", "resend_at = 9", "pending 0 9 "},
		"final":                  {Failure{Counts: true, Attempts: 5, Cause: "why", Final: true}, "token", "attempts = 4", "failed 5 0 why"},
		"gives way":              {Failure{Counts: true, Attempts: 1, Cause: "why", GivesWay: true}, "token", "attempts = 0", "cancelled 1 0 why"},
		"does not count": {
			Failure{Attempts: 3, Cause: "why"}, "token", "attempts = 1", "pending 1 0 ",
		},
		"another attempt":    {Failure{Counts: true, Attempts: 2, Cause: "why", Final: true}, "another", "attempts = 1", "running 1 0 "},
		"after the effect":   {Failure{Counts: true, Attempts: 2, Final: true}, "token", "status = 'done', finished_at = 1", "done 0 0 "},
		"an earlier version": {Failure{Counts: true, Attempts: 2, Final: true}, "token", "version = 2", "running 0 0 "},
		"an earlier task":    {Failure{Counts: true, Attempts: 2, Final: true}, "token", "status = 'pending', created_at = created_at + 1", "pending 0 0 "},
	} {
		x, k := leased(t)
		x.set("a", tt.before)
		check(t, x.RecordFailure(t.Context(), Fence{ID: "a", Version: 1, Created: k.Created}, tt.f, tt.token, start))
		var status, cause string
		var attempts, resend int64
		check(t, x.one(t.Context(),
			"SELECT status, attempts, COALESCE(resend_at, 0), COALESCE(last_error, '') FROM rabbitdelay_tasks WHERE id = 'a'", nil,
			&status, &attempts, &resend, &cause))
		want(t, name, fmt.Sprintf("%s %d %d %s", status, attempts, resend, cause), tt.want)
	}
}

// RecordFailure returns a unique-key error if the task would become pending again while another task with its unique
// key is pending.
func TestRecordFailureOfAKeyThatIsTaken(t *testing.T) {
	x, _ := leased(t)
	other := toQ("b", 0)
	other.UniqueKey = "k"
	x.insert(other)
	err := x.RecordFailure(t.Context(), Fence{ID: "a", Version: 1}, Failure{}, "token", start)
	if !sqldb.Duplicate(err) {
		t.Errorf("RecordFailure: got %v, want a unique-key error", err)
	}
}

func TestRecordDeath(t *testing.T) {
	x, k := leased(t)
	check(t, x.RecordDeath(t.Context(), k, 3, "killed", start))
	got := x.get("a")
	want(t, "attempts", got.Attempts, "3")
	want(t, "the last error", got.LastError, "killed")
	check(t, x.RecordDeath(t.Context(), k, 2, "again", start))
	want(t, "attempts after a late record", x.get("a").Attempts, "3")
	earlier := k
	earlier.Created--
	check(t, x.RecordDeath(t.Context(), earlier, 8, "of an earlier task with the id", start))
	want(t, "attempts after the death of an earlier task", x.get("a").Attempts, "3")
	x.end("a", Done, start)
	check(t, x.RecordDeath(t.Context(), k, 9, "late", start))
	want(t, "attempts of a done task", x.get("a").Attempts, "3")
}
