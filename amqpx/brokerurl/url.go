// Package brokerurl reads the URL of a broker as a client does, and shows it without its password. It does no
// I/O.
package brokerurl

import (
	"errors"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Errors about a URL say nothing of the URL itself: what could not be parsed may hold the password.
var (
	errURL    = errors.New("expected a URL like amqp://user:password@host:5672/vhost (or amqps://), with special characters in user and password percent-encoded")
	errCut    = errors.New("a character of the user or the password ends the address; percent-encode # as %23, / as %2F, ? as %3F and @ as %40")
	errNoHost = errors.New("no host in the URL; is a variable not set? Expected a URL like amqp://user:password@host:5672/vhost")
)

// Parse reads a broker's URL as amqpx.Open does. It accepts the same URLs as amqp091.ParseURI, except one without
// a host (for which amqp091 uses localhost) and those that Check refuses. Its errors never contain the password.
func Parse(s string) (amqp.URI, error) {
	u, err := amqp.ParseURI(s)
	if err != nil {
		return amqp.URI{}, errURL
	}
	if err := Check(s); err != nil {
		return amqp.URI{}, err
	}
	if parsed, err := url.Parse(s); err != nil || parsed.Hostname() == "" {
		return amqp.URI{}, errNoHost
	}
	return u, nil
}

// Check refuses a URL whose user or password contains a character that must be percent-encoded. In
// amqp://user:12#34@host the # ends the address: "user" would be read as the host and "12", part of the password,
// as the port, which errors and logs show.
func Check(s string) error {
	_, rest, _ := strings.Cut(s, ":")
	rest = strings.TrimPrefix(rest, "//")
	after := ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		after = rest[i:]
	}
	if strings.Contains(s, "#") || strings.Contains(after, "@") {
		return errCut
	}
	return nil
}

// Redact returns the URL of a broker or a database with its password replaced, safe to print. A URL that cannot
// be parsed is replaced entirely.
func Redact(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		return "(not a URL)"
	}
	// In what is opaque user:password could stand, and an @ after the host is part of a password that is not
	// percent-encoded.
	if u.Opaque != "" || Check(s) != nil {
		return u.Scheme + ":(redacted)"
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return u.Scheme + ":(redacted)"
	}
	for name := range q {
		switch strings.ToLower(name) {
		case "password", "passwd", "pwd", "secret", "token", "sslpassword":
			q.Set(name, "xxxxx")
			u.RawQuery = q.Encode()
		}
	}
	return u.Redacted()
}
