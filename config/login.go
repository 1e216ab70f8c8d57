package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// Secret is a password. Every way of printing it leaves it out; string(s) is the
// password itself.
type Secret string

// String is empty for none, else "xxxxx".
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "xxxxx"
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText is String, for JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// nodes are the brokers' URLs.
func (b *Broker) nodes() []URL {
	if b.URL == "" {
		return b.URLs
	}
	return append([]URL{b.URL}, b.URLs...)
}

// first is a broker's URL, empty without one.
func (b *Broker) first() URL {
	for _, u := range b.nodes() {
		return u
	}
	return ""
}

// secure reports whether the brokers are reached by TLS. Without an address that is
// not known, and the TLS files may be for it.
func (b *Broker) secure() bool {
	return b.first() == "" || strings.HasPrefix(string(b.first()), "amqps:")
}

// Vhost returns the virtual host of the brokers' URLs; "/" without one.
func (c *Config) Vhost() (string, error) {
	if c.Broker.first() == "" {
		return "/", nil
	}
	uri, err := amqpx.ParseURL(string(c.Broker.first()))
	return uri.Vhost, err
}

// ErrNoBroker is in the error of what needs a broker, where no setting has an address.
// None is guessed: a program without its settings would declare its queues on whatever
// broker happens to run beside it.
var ErrNoBroker = errors.New("no broker is given; set AMQP_URL, --url of a command, or broker.url in the file to an address such as amqp://host:5672/vhost")

// separate tells whether user or password stand apart from the URLs.
func (b *Broker) separate() bool { return b.Username != "" || b.Password != "" || b.PasswordFile != "" }

// login reads user and password that stand apart from a URL. The file is read anew
// by each call, because a secret that is mounted may be renewed.
func (b *Broker) login(uri string) (username, password string, err error) {
	u, err := amqpx.ParseURL(uri)
	if err != nil {
		return "", "", err
	}
	username, password = cmp.Or(b.Username, u.Username), string(b.Password)
	if b.PasswordFile != "" {
		password, err = readSecret(b.PasswordFile)
	}
	return username, password, err
}

// source is login for a client, nil where the URLs have it all.
func (b *Broker) source() func(context.Context) (username, password string, err error) {
	if !b.separate() {
		return nil
	}
	own, uri := *b, string(b.first())
	return func(context.Context) (string, string, error) { return own.login(uri) }
}

// readSecret reads a file that has nothing but a password, and perhaps the end of
// its line.
func readSecret(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %s", file, reason(err))
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" {
		return "", fmt.Errorf("%s is empty; expected the password", file)
	}
	return text, nil
}

// login checks how user and password are given.
func (k *checker) login(b *Broker) {
	hasPassword := b.Password != "" || b.PasswordFile != ""
	switch {
	case b.separate() && b.ExternalAuth:
		path := "broker.username"
		if b.Username == "" {
			path = "broker.password"
		}
		k.badf(path, "has no effect with broker.external_auth, which logs in by the client certificate; remove one")
	case b.Password != "" && b.PasswordFile != "":
		k.badf("broker.password_file", "is set, and so is broker.password; give one of them")
	case b.Username != "" && !hasPassword:
		k.badf("broker.username", "has no password; set broker.password or broker.password_file, or put both into broker.url")
	}
}

// ranks of sources: a higher one wins.
const (
	byDefault = iota
	byFile
	byVariable
	byFlag
)

func (l *loader) rank(path string) int {
	if _, ok := l.src.Overrides[path]; ok {
		return byFlag
	}
	if os.Getenv(variable(path)) != "" {
		return byVariable
	}
	if _, ok := l.file.values[path]; ok {
		return byFile
	}
	return byDefault
}

// reconcile settles what several sources say of the same thing under different
// names: what comes from a higher source stands alone. Who gives --url means that
// broker and that user, whatever the file has.
func (l *loader) reconcile() {
	b := &l.c.Broker
	single, several := l.rank("broker.url"), l.rank("broker.urls")
	switch {
	case len(b.URLs) == 0:
	case single > several:
		b.URLs = nil
		delete(l.c.origins, "broker.urls")
	case several > single:
		b.URL = ""
		delete(l.c.origins, "broker.url")
	}
	at := max(single, several)
	inURL := false
	for _, u := range b.nodes() {
		parsed, err := url.Parse(string(u))
		inURL = inURL || err == nil && parsed.User != nil
	}
	name, word, file := l.rank("broker.username"), l.rank("broker.password"), l.rank("broker.password_file")
	if inURL && at > name {
		b.Username = ""
	}
	if inURL && at > word || file > word {
		b.Password = ""
	}
	if inURL && at > file || word > file {
		b.PasswordFile = ""
	}
}
