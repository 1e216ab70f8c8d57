// Package dbdriver is where the database drivers that a program links make
// themselves known to package config.
package dbdriver

import (
	"database/sql"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
)

// Driver opens databases of one dialect. Its errors never contain the URL, and
// none of its functions connects.
type Driver struct {
	Check    func(url string) error
	Open     func(url string) (*sql.DB, error)
	Listener func(url string) (schedule.Listener, error) // nil where the database cannot notify
}

var linked = map[schedule.Dialect]Driver{}

// Register is called by a driver's package when it is initialised, and by nobody
// later.
func Register(dialect schedule.Dialect, d Driver) { linked[dialect] = d }

// Of is the driver of a dialect, if it is linked.
func Of(dialect schedule.Dialect) (Driver, bool) {
	d, ok := linked[dialect]
	return d, ok
}
