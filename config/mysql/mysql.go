// Package mysql enables package config to open mysql:// and mariadb:// URLs. Import it only for this effect:
//
//	import _ "github.com/rabbitdelay/rabbitdelay/config/mysql"
package mysql

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/config/internal/dbdriver"
)

func init() { //nolint:gochecknoinits // programs import the package only for this registration, like the drivers of database/sql
	dbdriver.Register(schedule.MySQL, dbdriver.Driver{
		Check: func(u string) error { _, err := parse(u); return err },
		Open:  open,
	})
}

func open(u string) (*sql.DB, error) {
	cfg, err := parse(u)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, errURL
	}
	return sql.OpenDB(connector), nil
}

var errURL = errors.New("expected a URL such as mysql://user:password@host:3306/database, with special characters in user and password percent-encoded")

func parse(raw string) (*mysql.Config, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || strings.Trim(u.Path, "/") == "" {
		return nil, errURL
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr = "tcp", u.Host
	if u.Port() == "" {
		cfg.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	// The driver's own parser validates the parameters.
	parsed, err := mysql.ParseDSN(cfg.FormatDSN() + separator(cfg.FormatDSN()) + u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w; the parameters after ? are not valid for the driver", errURL)
	}
	parsed.ParseTime = true
	parsed.MultiStatements = false
	parsed.Logger = silent{} // the driver must not write to standard error
	return parsed, nil
}

func separator(dsn string) string {
	if strings.Contains(dsn[strings.LastIndexByte(dsn, '/'):], "?") {
		return "&"
	}
	return "?"
}

type silent struct{}

func (silent) Print(...any) {}
