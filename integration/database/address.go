package database

import (
	"fmt"
	"net/url"
)

// URL returns the address with user, password and database, such as
// postgres://rabbitdelay:…@127.0.0.1:23456/rabbitdelay. The schemes are
// postgres, mysql and redis.
func (s *Server) URL() string { return s.url }

// RedactedURL returns the URL for people to read, without the password.
func (s *Server) RedactedURL() string {
	u, err := url.Parse(s.url)
	if err != nil {
		return "(a URL that cannot be parsed)" // the error may quote the password
	}
	return u.Redacted()
}

// Driver returns the name under which database/sql knows the driver: pgx or
// mysql.
func (s *Server) Driver() string {
	switch s.kind {
	case PostgreSQL:
		return "pgx"
	case MariaDB, MySQL:
		return "mysql"
	default:
		return ""
	}
}

// DSN returns the address in the form that the driver takes: for pgx the URL,
// for mysql user:password@tcp(host:port)/database with parseTime.
func (s *Server) DSN() string {
	if s.Driver() != "mysql" {
		return s.url
	}
	u, err := url.Parse(s.url)
	if err != nil {
		return s.url // the driver refuses it
	}
	password, _ := u.User.Password()
	query := u.Query()
	if !query.Has("parseTime") {
		query.Set("parseTime", "true")
	}
	return fmt.Sprintf("%s:%s@tcp(%s)%s?%s", u.User.Username(), password, u.Host, u.Path, query.Encode())
}
