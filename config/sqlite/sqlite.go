// Package sqlite enables package config to open sqlite: URLs, with modernc.org/sqlite. Import it only for this
// effect:
//
//	import _ "github.com/rabbitdelay/rabbitdelay/config/sqlite"
package sqlite

import (
	"database/sql"
	"errors"
	"strings"

	_ "modernc.org/sqlite" // registers the driver named sqlite

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config/internal/dbdriver"
)

func init() { //nolint:gochecknoinits // programs import the package only for this registration, like the drivers of database/sql
	dbdriver.Register(schedule.SQLite, dbdriver.Driver{
		Check: func(u string) error { _, _, err := source(u); return err },
		Open:  open,
	})
}

func open(u string) (*sql.DB, error) {
	name, memory, err := source(u)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, errURL
	}
	if memory { // with several connections, each would have its own database
		db.SetMaxOpenConns(1)
	}
	return db, nil
}

var errURL = errors.New("expected a file, such as sqlite:orders.db or sqlite:///var/lib/orders.db")

// source returns the driver's data source name, and whether it is a database in memory.
func source(u string) (name string, memory bool, err error) {
	_, rest, _ := strings.Cut(u, ":")
	path, query, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "?")
	if path == "" || strings.ContainsRune(path, 0) {
		return "", false, errURL
	}
	pragmas := "_pragma=busy_timeout(20000)&_pragma=journal_mode(wal)&_txlock=immediate"
	if query != "" {
		pragmas += "&" + query
	}
	if path == ":memory:" {
		return ":memory:?" + pragmas, true, nil
	}
	// In a file: URI, ? and # would end the path, and % would begin an escape.
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	return "file:" + escaped + "?" + pragmas, false, nil
}
