package config

import (
	"github.com/rabbitdelay/rabbitdelay/amqpx/brokerurl"
)

// URL is the address of a broker, a management API or a database. It may hold a
// password, so every way of printing it leaves the password out; string(u) is
// the complete URL.
type URL string

// String is the URL with its password replaced.
func (u URL) String() string {
	if u == "" {
		return ""
	}
	return brokerurl.Redact(string(u))
}

// GoString is String, for %#v.
func (u URL) GoString() string { return u.String() }

// MarshalText is String, for JSON.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }
