package amqpx

import (
	"errors"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rabbitdelay/rabbitdelay/internal/address"
)

// errURL says nothing of the URL itself: what could not be parsed may hold the
// password.
var errURL = errors.New("expected a URL like amqp://user:password@host:5672/vhost (or amqps://), with special characters in user and password percent-encoded")

func parseURL(s string) (amqp.URI, error) {
	if s == "" {
		return amqp.URI{}, errors.New("is empty; " + errURL.Error())
	}
	u, err := amqp.ParseURI(s)
	if err != nil {
		return amqp.URI{}, errURL
	}
	if !address.Whole(s) {
		return amqp.URI{}, errors.New(address.Split)
	}
	if !address.HasHost(s) {
		return amqp.URI{}, errors.New(address.NoHost)
	}
	return u, nil
}

// RedactURL is the URL of a broker or a database with its password replaced,
// fit to be printed. What cannot be parsed is replaced as a whole.
func RedactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		return "(not a URL)"
	}
	// In what is opaque user:password could stand, and an @ after the host is part
	// of a password that is not percent-encoded.
	if u.Opaque != "" || !address.Whole(s) {
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
