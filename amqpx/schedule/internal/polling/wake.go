package polling

import (
	"slices"
	"sync"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/sqldb"
)

// running maps each database to the Pollers of the loops that run on it in this process.
var running = struct {
	sync.Mutex

	on map[sqldb.DB][]*Poller
}{on: map[sqldb.DB][]*Poller{}}

// Begin registers a Poller, so that writes to the database wake its loops, until the returned function is called.
func (p *Poller) Begin(db sqldb.DB) (unregister func()) {
	running.Lock()
	defer running.Unlock()
	running.on[db] = append(running.on[db], p)
	return func() {
		running.Lock()
		defer running.Unlock()
		running.on[db] = slices.DeleteFunc(running.on[db], func(x *Poller) bool { return x == p })
		if len(running.on[db]) == 0 {
			delete(running.on, db)
		}
	}
}

func runningOn(db sqldb.DB) []*Poller {
	running.Lock()
	defer running.Unlock()
	return slices.Clone(running.on[db])
}

// Wrote makes the loops on a database poll soon after a write. It has an effect only in virtual time, where the loops
// would otherwise sleep until their next known work.
func Wrote(db sqldb.DB) {
	for _, p := range runningOn(db) {
		p.ring()
	}
}

// Wake makes the relays on a database poll now, and several times shortly afterwards, because the transaction that
// wrote the task may not be committed yet.
func Wake(db sqldb.DB) {
	for _, p := range runningOn(db) {
		p.Uncommitted.Store(true)
		p.Committed()
	}
}

// Committed makes the relay poll once, for tasks that are committed.
func (p *Poller) Committed() {
	p.ring()
	select {
	case p.Woken <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// notified is how soon a task must be due for PostgreSQL to be certain to notify the relays at the commit. The trigger
// on rabbitdelay_tasks notifies them of tasks that are due within five seconds.
const notified = 4 * time.Second

// Due makes the relays on a database poll for a task that has just been written. They poll immediately if the task may
// be due before their next poll. Otherwise only relays in virtual time poll, soon (see Wrote). A relay that will
// receive a notification about the task does not poll before that. The parameter due is in milliseconds since the Unix
// epoch.
func (p *Poller) Due(db sqldb.DB, due int64) {
	now := p.Now()
	if due > now.Add(2*p.Interval).UnixMilli() {
		Wrote(db)
		return
	}
	for _, q := range runningOn(db) {
		if q.Listening.Load() && due <= now.Add(notified).UnixMilli() {
			continue
		}
		q.Uncommitted.Store(true)
		q.Committed()
	}
}
