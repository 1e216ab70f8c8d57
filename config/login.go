package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/internal/brokerurl"
)

// URL is the address of a broker, a management API or a database. It may contain a password, so String, GoString and
// MarshalText omit the password. Use string(u) to get the complete URL.
type URL string

// String returns the URL with its password redacted.
func (u URL) String() string {
	if u == "" {
		return ""
	}
	return brokerurl.Redact(string(u))
}

// GoString returns the same as String, for %#v.
func (u URL) GoString() string { return u.String() }

// MarshalText returns the same as String, for JSON.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// Secret is a password. String, GoString and MarshalText do not reveal it. Use string(s) to get the password itself.
type Secret string

// String returns "xxxxx", or "" for an empty password.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "xxxxx"
}

// GoString returns the same as String, for %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText returns the same as String, for JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// nodes returns the brokers' URLs.
func (b *Broker) nodes() []URL {
	if b.URL == "" {
		return b.URLs
	}
	return append([]URL{b.URL}, b.URLs...)
}

// first returns the first URL, or "" if there is none.
func (b *Broker) first() URL {
	for _, u := range b.nodes() {
		return u
	}
	return ""
}

// secure reports whether the brokers are reached over TLS. Without an address it returns true, because the TLS files
// may be meant for an address that is set later.
func (b *Broker) secure() bool {
	return b.first() == "" || strings.HasPrefix(string(b.first()), "amqps:")
}

// ErrNoBroker is returned by every method that needs a broker if no setting contains an address. There is no default
// address, because a program without its settings would declare its queues on any broker that happens to run on the
// same machine.
var ErrNoBroker = errors.New("no broker address is set; set AMQP_URL, the flag --url, or broker.url in the file to an address such as amqp://host:5672/vhost")

// separate reports whether the user or the password is set outside of the URLs.
func (b *Broker) separate() bool { return b.Username != "" || b.Password != "" || b.PasswordFile != "" }

// credentials returns the user and password for a URL if they are set outside of the URLs. It reads the password file
// at each call, because a mounted secret may have been renewed.
func (b *Broker) credentials(uri string) (username, password string, err error) {
	u, err := brokerurl.Parse(uri)
	if err != nil {
		return "", "", err
	}
	username, password = cmp.Or(b.Username, u.Username), string(b.Password)
	if b.PasswordFile != "" {
		password, err = readSecret(b.PasswordFile)
	}
	return username, password, err
}

// source returns a function that returns the current credentials, or nil if they are in the URLs.
func (b *Broker) source() func(context.Context) (username, password string, err error) {
	if !b.separate() {
		return nil
	}
	own, uri := *b, string(b.first())
	return func(context.Context) (string, string, error) { return own.credentials(uri) }
}

// readSecret reads a password from a file, without the line break at its end.
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

// reason returns an error's text without the path, which the problem already names.
func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

// login checks the settings for user and password.
func (k *checker) login(b *Broker) {
	hasPassword := b.Password != "" || b.PasswordFile != ""
	switch {
	case b.separate() && b.ExternalAuth:
		path := "broker.username"
		if b.Username == "" {
			path = "broker.password"
		}
		k.badf(path, "has no effect with broker.external_auth, which logs in with the client certificate; remove one of the two")
	case b.Password != "" && b.PasswordFile != "":
		k.badf("broker.password_file", "is set together with broker.password; set only one of them")
	case b.Username != "" && !hasPassword:
		k.badf("broker.username", "has no password; set broker.password or broker.password_file, or put both into broker.url")
	}
}

// reconcile resolves conflicts between settings that have the same meaning under different names. It keeps only the
// value of the source with the higher rank. For example, --url replaces the broker and the user that are set in the
// file.
func (l *loader) reconcile() {
	b := &l.c.Broker
	rankOf := func(path string) rank {
		g, _ := l.value(path)
		return g.rank
	}
	single, several := rankOf("broker.url"), rankOf("broker.urls")
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
	name, word, file := rankOf("broker.username"), rankOf("broker.password"), rankOf("broker.password_file")
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
