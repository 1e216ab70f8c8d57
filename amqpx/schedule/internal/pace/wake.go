package pace

import (
	"slices"
	"sync"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// running holds the registered paces of this process by database.
var running = struct {
	sync.Mutex

	on map[sqldb.DB][]*Pace
}{on: map[sqldb.DB][]*Pace{}}

// Begin registers a pace until the returned function is called.
func (p *Pace) Begin(db sqldb.DB) (unregister func()) {
	p.virtual = faketime.Inside()
	running.Lock()
	defer running.Unlock()
	running.on[db] = append(running.on[db], p)
	return func() {
		running.Lock()
		defer running.Unlock()
		running.on[db] = slices.DeleteFunc(running.on[db], func(x *Pace) bool { return x == p })
		if len(running.on[db]) == 0 {
			delete(running.on, db)
		}
	}
}

func runningOn(db sqldb.DB) []*Pace {
	running.Lock()
	defer running.Unlock()
	return slices.Clone(running.on[db])
}

// Wrote makes the loops on a database look soon after a write. It only has an effect in a bubble,
// where they would otherwise not look soon.
func Wrote(db sqldb.DB) {
	for _, p := range runningOn(db) {
		p.ring()
	}
}

// Wake makes the relays on a database look now, and several times shortly afterwards.
func Wake(db sqldb.DB) {
	for _, p := range runningOn(db) {
		p.ring()
		select {
		case p.Woken <- struct{}{}:
		default: // the relay has a wake-up pending already
		}
	}
}

// Due makes the relays on a database look for a task that was written: immediately if it may be due
// before their next look, and soon (see Wrote) otherwise. due is in milliseconds.
func (p *Pace) Due(db sqldb.DB, due int64) {
	if due <= p.Now().Add(2*p.Interval).UnixMilli() {
		Wake(db)
	} else {
		Wrote(db)
	}
}
