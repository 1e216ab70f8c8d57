package database

import (
	"fmt"
	"net/url"
)

// URL returns the server's URL with user, password and database, such as
// postgres://rabbitdelay:…@127.0.0.1:23456/rabbitdelay. The schemes are postgres, mysql and redis.
func (s *Server) URL() string { return s.url }

// RedactedURL returns the URL without the password, for display.
func (s *Server) RedactedURL() string {
	u, err := url.Parse(s.url)
	if err != nil {
		return "(a URL that cannot be parsed)" // the error may contain the password
	}
	return u.Redacted()
}

// Driver returns the name of the database/sql driver: pgx or mysql.
func (s *Server) Driver() string {
	switch s.kind {
	case PostgreSQL, PgBouncer:
		return "pgx"
	case MariaDB, MySQL:
		return "mysql"
	default:
		return ""
	}
}

// DSN returns the data source name for the driver. For pgx this is the URL, and for mysql it is
// user:password@tcp(host:port)/database with parseTime.
func (s *Server) DSN() string {
	if s.Driver() != "mysql" {
		return s.url
	}
	u, err := url.Parse(s.url)
	if err != nil {
		return s.url // the driver rejects it
	}
	password, _ := u.User.Password()
	query := u.Query()
	if !query.Has("parseTime") {
		query.Set("parseTime", "true")
	}
	return fmt.Sprintf("%s:%s@tcp(%s)%s?%s", u.User.Username(), password, u.Host, u.Path, query.Encode())
}
