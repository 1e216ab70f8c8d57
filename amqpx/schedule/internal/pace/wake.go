package pace

import (
	"slices"
	"sync"

	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/faketime"
	"github.com/rabbitdelay/rabbitdelay/amqpx/internal/sqldb"
)

// running are the paces of this process, by their databases.
var running = struct {
	sync.Mutex

	on map[sqldb.DB][]*Pace
}{on: map[sqldb.DB][]*Pace{}}

// Begin registers a pace until the function that it returns is called.
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

// Wrote has the loops on a database look soon, which they would not in a bubble.
func Wrote(db sqldb.DB) {
	for _, p := range runningOn(db) {
		p.ring()
	}
}

// Wake has the relays on a database look now, and several times in the moments after.
func Wake(db sqldb.DB) {
	for _, p := range runningOn(db) {
		p.ring()
		select {
		case p.Woken <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// Due has the relays on a database look soon for a task that was written, and at once if it
// may be due before their next look.
func (p *Pace) Due(db sqldb.DB, due int64) {
	if due <= p.Now().Add(2*p.Interval).UnixMilli() {
		Wake(db)
	} else {
		Wrote(db)
	}
}
