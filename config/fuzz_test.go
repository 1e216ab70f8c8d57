package config

import (
	"errors"
	"strings"
	"testing"
)

const fuzzSecret = "Hunter-2-hunter"

// FuzzDatabaseURL checks that no error about a database URL contains the password, whatever text surrounds it.
func FuzzDatabaseURL(f *testing.F) {
	for _, form := range []struct{ scheme, before, after, end string }{
		{"postgres", "", "", "@db:5432/shop?sslmode=disable"},
		{"postgresql", "12/", "", "@db/shop"},
		{"postgres", "%", "", "@db/shop?connect_timeout=x"},
		{"postgres", "", "", "@db:x/shop"},
		{"mysql", "p@ss/", "?#", "@db:3307/shop?timeout=5s"},
		{"mariadb", "", "", "@db"},
		{"mysql", "", "", "@db/shop?timeout=" + fuzzSecret},
		{"mysql", ")", "(", "@tcp(db)/shop?charset=%zz"},
		{"sqlite", "", "", ":memory:"},
		{"", "host=db password=", " user=x", ""},
	} {
		f.Add(form.scheme, form.before, form.after, form.end)
	}
	f.Fuzz(func(t *testing.T, scheme, before, after, end string) {
		if strings.Contains(scheme, fuzzSecret) {
			return
		}
		raw := URL(scheme + "://user:" + before + fuzzSecret + after + end)
		if err := checkDatabase(raw); err != nil && strings.Contains(err.Error(), fuzzSecret) {
			t.Fatalf("checking %q: got the error %q, want it without the password", string(raw), err)
		}
		if strings.Contains(raw.String(), fuzzSecret) && strings.HasSuffix(end, "@db") {
			t.Fatalf("the URL %q is printed as %s, want it without the password", string(raw), raw)
		}
	})
}

// FuzzBrokerURL checks that a URL from a flag is either accepted, or refused with an error that does not contain its
// password.
func FuzzBrokerURL(f *testing.F) {
	for _, s := range []string{
		"amqp://user:" + fuzzSecret + "@host/", "amqps://user:" + fuzzSecret + "@host:x/", "amqp://user:12/" + fuzzSecret + "@host", "http://" + fuzzSecret,
		fuzzSecret, "amqp://user:%" + fuzzSecret, "amqp://[::1" + fuzzSecret, " amqp://u:" + fuzzSecret + "@h",
		"${" + fuzzSecret + "}", "amqp://u:" + fuzzSecret + "@h/\x00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, path := range []string{"broker.url", "broker.management_url", "database.url"} {
			c, err := load(nil, Source{Overrides: map[string]Override{path: {Value: s, Origin: "--flag"}}})
			if err == nil {
				for _, u := range []URL{c.Broker.URL, c.Broker.ManagementURL, c.Database.URL} {
					text, merr := u.MarshalText()
					if merr != nil || string(text) != u.String() || u.GoString() != u.String() {
						t.Fatalf("the URL %q is printed as %s, as JSON %s (error %v) and in Go syntax as %s, want three equal texts and no error",
							string(u), u, text, merr, u.GoString())
					}
				}
				continue
			}
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%s: %q: got a %T: %v, want an *Error", path, s, err, err)
			}
			if strings.Contains(s, fuzzSecret) && strings.Contains(err.Error(), fuzzSecret) {
				t.Fatalf("%s: %q: got the error %v, want it without the password", path, s, err)
			}
		}
	})
}
