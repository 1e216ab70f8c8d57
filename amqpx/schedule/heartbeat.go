package schedule

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// RelaySilence is how long a relay that runs may at most be unseen: it says every 10
// seconds that it does.
const RelaySilence = 30 * time.Second

const (
	beatEvery = 10 * time.Second
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
	failed := false
	for ctx.Err() == nil {
		err := sqldb.Explain(s.seen(ctx, id, began))
		if err != nil && !failed && ctx.Err() == nil {
			s.log.Warn("schedule: this relay cannot say that it runs; it relays all the same", zap.Error(err))
		}
		if failed = err != nil; errors.Is(err, ErrDenied) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(beatEvery):
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = s.write(ctx, "DELETE FROM rabbitdelay_relays WHERE id = ?", id) // its silence tells too
}

// seen renews the row of this relay.
func (s *Store) seen(ctx context.Context, id string, began time.Time) error {
	now := s.now().UnixMilli()
	if n, err := s.write(ctx, "UPDATE rabbitdelay_relays SET seen_at = ? WHERE id = ?", now, id); err != nil || n > 0 {
		return err
	}
	host, _ := os.Hostname() // empty if unknown
	name := fmt.Sprintf("%s:%d", cmp.Or(host, "unknown"), os.Getpid())
	_, err := s.write(ctx, "INSERT INTO rabbitdelay_relays (id, name, version, started_at, seen_at) VALUES (?, ?, ?, ?, ?)", id, name, moduleVersion(), began.UnixMilli(), now)
	if err == nil {
		_, err = s.write(ctx, "DELETE FROM rabbitdelay_relays WHERE seen_at < ?", now-keepBeats.Milliseconds())
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
