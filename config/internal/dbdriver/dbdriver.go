// Package dbdriver is the registry in which the database drivers that a program links register themselves for package
// config.
package dbdriver

import (
	"database/sql"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Driver opens databases of one dialect. Its errors never contain the URL, and none of its functions connects.
type Driver struct {
	Check    func(url string) error
	Open     func(url string) (*sql.DB, error)
	Listener func(url string) (schedule.Listener, error) // nil if the database cannot notify
}

var linked = map[schedule.Dialect]Driver{}

// Register adds a driver. A driver's package calls it during initialisation. It must not be called later.
func Register(dialect schedule.Dialect, d Driver) { linked[dialect] = d }

// Of returns the driver of a dialect, and whether it is linked.
func Of(dialect schedule.Dialect) (Driver, bool) {
	d, ok := linked[dialect]
	return d, ok
}
