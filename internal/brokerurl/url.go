// Package brokerurl parses a broker's URL as clients do, and removes the password from URLs that are printed. It does
// no I/O.
package brokerurl

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Errors about a URL do not contain the URL, because a URL that could not be parsed may contain the password.
var (
	errURL    = errors.New("expected a URL like amqp://user:password@host:5672/vhost (or amqps://), with special characters in user and password percent-encoded")
	errCut    = errors.New("a character in the user or the password ends the address early; percent-encode # as %23, / as %2F, ? as %3F and @ as %40")
	errEmpty  = errors.New("empty; is a variable not set? Expected a URL like amqp://user:password@host:5672/vhost")
	errColons = errors.New("expected host:port after the @ that ends user and password; is that @ missing, or does an IPv6 address lack its brackets, [::1]:port? Write an @ in the user as %40")
	errPort   = errors.New("expected a port from 1 to 65535; is the @ that ends user and password missing?")
	errBeat   = errors.New("?heartbeat= in the URL: expected a whole number of seconds, 0 to 65535")
	errNoHost = errors.New("no host in the URL; is a variable not set? Expected a URL like amqp://user:password@host:5672/vhost")
)

// Parse parses a broker's URL as amqpx.Open does. It accepts the same URLs as amqp091.ParseURI, except a URL without a
// host (for which amqp091 uses localhost) and URLs that Check refuses. Its errors never contain the password.
func Parse(s string) (amqp.URI, error) {
	if strings.TrimSpace(s) == "" {
		return amqp.URI{}, errEmpty
	}
	parsed, err := url.Parse(s)
	if err != nil {
		return amqp.URI{}, errURL
	}
	if q := parsed.Query(); q.Has("heartbeat") {
		if _, err := strconv.ParseUint(q.Get("heartbeat"), 10, 16); err != nil {
			return amqp.URI{}, errBeat
		}
	}
	if err := Check(s); err != nil {
		return amqp.URI{}, err
	}
	u, err := amqp.ParseURI(s)
	if err != nil {
		return amqp.URI{}, errURL
	}
	if parsed.Hostname() == "" {
		return amqp.URI{}, errNoHost
	}
	return u, nil
}

// Check refuses a URL if a part of the user or the password would be parsed as a part of the URL that errors and logs
// show:
//
//   - In amqp://user:12#34@host the # ends the address, so "user" would be parsed as the host, and "12", the beginning
//     of the password, as the port.
//   - In amqp://user:password:5672 the @ and the host are missing, and a numeric password may be parsed as the port.
//   - In amqp://user@password@host an @ replaces the colon.
func Check(s string) error {
	_, rest, _ := strings.Cut(s, ":")
	authority, hierarchical := strings.CutPrefix(rest, "//")
	after := ""
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority, after = authority[:i], authority[i:]
	}
	if strings.Contains(s, "#") || strings.Contains(after, "@") {
		return errCut
	}
	if !hierarchical {
		return nil
	}
	hosts := authority
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, _, _ := strings.Cut(authority[:i], ":")
		if hosts = authority[i+1:]; strings.Contains(user, "@") {
			return errColons
		}
	}
	for host := range strings.SplitSeq(hosts, ",") { // a PostgreSQL URL may have several hosts
		if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
			return errColons
		}
		if i := strings.LastIndex(host, ":"); i >= 0 {
			n, err := strconv.ParseUint(host[i+1:], 10, 16)
			if errors.Is(err, strconv.ErrRange) || err == nil && n == 0 {
				return errPort
			}
		}
	}
	return nil
}

// Redact returns the URL of a broker or a database with its password replaced, so that it is safe to print. A URL that
// cannot be parsed is replaced entirely.
func Redact(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		return "(not a URL)"
	}
	// An opaque part may contain user:password, and an @ after the host is part of a password that is not
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
