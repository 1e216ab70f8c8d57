package schedule

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// RelaySilence is how long a relay that runs may at most be unseen: it says every 10
// seconds that it does.
const RelaySilence = 20 * time.Second

const (
	beatEvery = 10 * time.Second
	// In a bubble a relay says for so long that it runs, and renews it in the middle.
	beatAhead = 24 * time.Hour
	keepBeats = 7 * 24 * time.Hour // of a relay that has died
)

// Relay is a process whose Store.Run works on the database, or has died there within
// a week. One that ended leaves nothing behind.
type Relay struct {
	Name    string    `json:"name"`    // host:process
	Version string    `json:"version"` // of rabbitdelay; empty if the build does not tell
	Started time.Time `json:"started"`
	Seen    time.Time `json:"seen"` // by the database's clock
}

// Running tells whether the relay was seen within RelaySilence.
func (r Relay) Running(now time.Time) bool { return now.Sub(r.Seen) <= RelaySilence }

// place is where to look for the process.
func (r Relay) place() string {
	host, pid, _ := strings.Cut(r.Name, ":")
	return fmt.Sprintf("host %s, pid %s", host, pid)
}

// Silent returns what a relay's silence means, and where to look; empty if it runs.
func (r Relay) Silent(now time.Time) string {
	if r.Running(now) {
		return ""
	}
	return fmt.Sprintf("no heartbeat for %s; the process is stopped, hung or cut off; look at %s", topology.FormatDuration(now.Sub(r.Seen).Truncate(time.Second)), r.place())
}

// WhoSends returns who would send tasks, as far as relays can be seen: those that run,
// or what has become of the last one. It takes the list of Relays; nil is unknown.
func WhoSends(relays []Relay, now time.Time) string {
	running := slices.DeleteFunc(slices.Clone(relays), func(r Relay) bool { return !r.Running(now) })
	switch {
	case relays == nil:
		return "which relays run on this database is unknown"
	case len(relays) == 0:
		return "no relay runs on this database"
	case len(running) == 0:
		return relays[0].Silent(now)
	}
	last := running[0]
	seen := topology.FormatDuration(max(0, now.Sub(last.Seen)).Truncate(time.Second))
	if n := len(running); n > 1 {
		return fmt.Sprintf("%d relays run, the last heartbeat %s ago from %s; their logs say why a task is not sent", n, seen, last.place())
	}
	return fmt.Sprintf("a relay runs, its last heartbeat %s ago; its log says why a task is not sent; look at %s", seen, last.place())
}

// Relays reads the relays of the database, the one seen last first.
func (s *Store) Relays(ctx context.Context) ([]Relay, error) {
	fail := func(err error) ([]Relay, error) {
		return nil, fmt.Errorf("reading relays: %w", sqldb.Explain(err))
	}
	rows, err := s.db.QueryContext(ctx, "SELECT name, version, started_at, seen_at FROM rabbitdelay_relays ORDER BY seen_at DESC, name")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = rows.Close() }() // it was read, or the error is another
	list := []Relay{}
	for rows.Next() {
		var r Relay
		var started, seen int64
		if err := rows.Scan(&r.Name, &r.Version, &started, &seen); err != nil {
			return fail(err)
		}
		r.Started, r.Seen = time.UnixMilli(started).UTC(), time.UnixMilli(seen).UTC()
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return list, nil
}

// beat says that this relay runs, until ctx ends. Nothing depends on it: a relay that
// may not write there relays all the same.
func (s *Store) beat(ctx context.Context) {
	id, began := rand.Text(), s.now()
	every, ahead := beatEvery, time.Duration(0)
	if s.pace.virtual {
		every, ahead = beatAhead/2, beatAhead
	}
	failed := false
	for ctx.Err() == nil {
		err := sqldb.Explain(s.seen(ctx, id, began, s.now().Add(ahead).UnixMilli()))
		if err != nil && !failed && ctx.Err() == nil {
			s.log.Warn("schedule: this relay cannot say that it runs; it relays all the same", zap.Error(err))
		}
		if failed = err != nil; errors.Is(err, ErrDenied) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = s.write(ctx, "DELETE FROM rabbitdelay_relays WHERE id = ?", id) // its silence tells too
}

// seen renews the row of this relay.
func (s *Store) seen(ctx context.Context, id string, began time.Time, at int64) error {
	if n, err := s.write(ctx, "UPDATE rabbitdelay_relays SET seen_at = ? WHERE id = ?", at, id); err != nil || n > 0 {
		return err
	}
	host, _ := os.Hostname() // empty if unknown
	name := fmt.Sprintf("%s:%d", cmp.Or(host, "unknown"), os.Getpid())
	_, err := s.write(ctx, "INSERT INTO rabbitdelay_relays (id, name, version, started_at, seen_at) VALUES (?, ?, ?, ?, ?)", id, name, moduleVersion(), began.UnixMilli(), at)
	if err == nil {
		_, err = s.write(ctx, "DELETE FROM rabbitdelay_relays WHERE seen_at < ?", s.now().Add(-keepBeats).UnixMilli())
	}
	return err
}

// write runs a statement, and says how many rows it changed.
func (s *Store) write(ctx context.Context, query string, args ...any) (int64, error) {
	d, err := s.dialect.Resolve(ctx, s.db)
	if err != nil {
		return 0, err
	}
	res, err := s.db.ExecContext(ctx, d.Bind(query), args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// moduleVersion is the version of rabbitdelay in this program.
func moduleVersion() string {
	const module = "github.com/rabbitdelay/rabbitdelay"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module && m.Version != "(devel)" {
			return m.Version
		}
	}
	return ""
}
