package relay

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

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule/internal/polling"
	"github.com/rabbitdelay/rabbitdelay/internal/rows"
	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

const (
	beatEvery = 10 * time.Second
	// With a virtual clock, a heartbeat is valid for beatAhead and is renewed halfway.
	beatAhead = 24 * time.Hour
	keepBeats = 7 * 24 * time.Hour // how long the row of a dead relay is kept
)

// Beat writes heartbeats for this relay until ctx ends. Heartbeats are only shown to operators, so a relay that lacks
// the permission to write them relays anyway.
func (r *Relay) Beat(ctx context.Context) {
	id := rand.Text()
	host, _ := os.Hostname() // empty if unknown
	row := rows.Relay{Name: fmt.Sprintf("%s:%d", cmp.Or(host, "unknown"), os.Getpid()), Version: moduleVersion(), Started: r.Poller.Now()}
	every, ahead := beatEvery, time.Duration(0)
	if r.Poller.Virtual() {
		every, ahead = beatAhead/2, beatAhead
	}
	failed := false
	for ctx.Err() == nil {
		now := r.Poller.Now()
		row.Seen = now.Add(ahead)
		err := r.onDatabase(ctx, func(c rows.Conn) error { return c.RenewRelay(ctx, id, row, now.Add(-keepBeats)) })
		if err != nil && !failed && ctx.Err() == nil {
			r.Log.Warn("schedule: could not write this relay's heartbeat; the relay continues", zap.Error(err))
		}
		if failed = err != nil; errors.Is(err, sqldb.ErrDenied) {
			return
		}
		_ = polling.Sleep(ctx, every) // an error only means that ctx has ended, which the loop checks itself
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = r.onDatabase(ctx, func(c rows.Conn) error { return c.RemoveRelay(ctx, id) }) // if this fails, the missing heartbeats show that the relay has stopped
}

func (r *Relay) onDatabase(ctx context.Context, do func(rows.Conn) error) error {
	c, err := r.DB.Conn(ctx)
	if err != nil {
		return err
	}
	return do(c)
}

// moduleVersion returns the version of rabbitdelay in this program, empty if it is unknown.
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
