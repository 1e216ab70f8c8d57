package brokerurl

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
)

func TestRedactURL(t *testing.T) {
	for in, want := range map[string]string{
		"amqp://u:hunter2@h:5672/v":              "amqp://u:xxxxx@h:5672/v",
		"amqps://u:hunter%402@h/%2F":             "amqps://u:xxxxx@h/%2F",
		"amqp://u@h/v":                           "amqp://u@h/v",
		"amqps://h":                              "amqps://h",
		"":                                       "(not a URL)",
		"u:hunter2@h":                            "u:(redacted)",
		"u:hunter2@tcp(h:3306)/d":                "u:(redacted)",
		"mysql:u:hunter2@tcp(h)/d":               "mysql:(redacted)",
		"amqp://u:hunter2@h:port":                "(not a URL)",
		"hunter2":                                "(not a URL)",
		"amqp://u:hun%ter2@h/":                   "(not a URL)",
		"amqp://u:hun/ter2@h/":                   "(not a URL)", // "hun" is not a port
		"amqp://u:12/hunter2@h/":                 "amqp:(redacted)",
		"amqp://u:12#hunter2@h/":                 "amqp:(redacted)",
		"amqp://u:a@b/hunter2@h/":                "amqp:(redacted)",
		"amqp://u:hunter2:5672":                  "amqp:(redacted)",
		"amqp://u@hunter2@h":                     "amqp:(redacted)",
		"amqp://u:77712345":                      "amqp:(redacted)",
		"amqp://[::1]:77712345":                  "amqp:(redacted)",
		"postgres://u:hunter2@h/d?x=1":           "postgres://u:xxxxx@h/d?x=1",
		"postgres://h/d?user=u&password=hunter2": "postgres://h/d?password=xxxxx&user=u",
		"postgres://h/d?password=hunter2&x=1":    "postgres://h/d?password=xxxxx&x=1",
		"postgres://h/d?sslPassword=hunter2":     "postgres://h/d?sslPassword=xxxxx",
		"postgres://h/d?password=a&password=b":   "postgres://h/d?password=xxxxx",
		"postgres://h/d?password=hunter2;x=%zz":  "postgres:(redacted)",
		"mysql://u:hunter2@h/d?tls=true":         "mysql://u:xxxxx@h/d?tls=true",
		"sqlite:/var/lib/orders.db":              "sqlite:/var/lib/orders.db",
		"sqlite:orders.db":                       "sqlite:(redacted)",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}

// Parse rejects a URL without a host, because the client library would connect to localhost.
func TestURLNeedsAHost(t *testing.T) {
	for _, url := range []string{
		"amqp://guest:hunter2@:5672/", "amqp://guest:hunter2@/", "amqps://:5671/v", "amqp://", "amqp:///v",
		"amqp:guest:hunter2@127.0.0.1:32782", "amqp:32782",
	} {
		_, err := Parse(url)
		if text := fmt.Sprint(err); !strings.Contains(text, "no host in the URL; is a variable not set?") {
			t.Errorf("Parse of %s: got %v, want an error that says that there is no host", url, err)
		}
		if strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("Parse of %s: got %v, want an error without the password", url, err)
		}
	}
	for _, url := range []string{"amqp://localhost", "amqp://guest@[::1]/v"} {
		if _, err := Parse(url); err != nil {
			t.Errorf("Parse of %s: got %v, want nil", url, err)
		}
	}
}

// An error about a value that is out of bounds does not contain text that may be a password.
func TestURLOutOfBounds(t *testing.T) {
	for url, want := range map[string]string{
		"amqp://user:77712345":                "expected a port from 1 to 65535",
		"amqp://user:7771234577712345777123":  "expected a port from 1 to 65535",
		"amqp://h:0/":                         "expected a port from 1 to 65535",
		"amqp://u:hunter2@h/?heartbeat=abc":   "0 to 65535",
		"amqp://u:hunter2@h/?heartbeat=70000": "0 to 65535",
	} {
		_, err := Parse(url)
		if text := fmt.Sprint(err); !strings.Contains(text, want) {
			t.Errorf("Parse of %s: got %v, want an error with %q", url, err, want)
		}
		for _, secret := range []string{"777", "hunter2"} {
			if strings.Contains(fmt.Sprint(err), secret) {
				t.Errorf("Parse of %s: got %v, want an error without %q", url, err, secret)
			}
		}
	}
	if u, err := Parse("amqp://h/?heartbeat=60"); err != nil || u.Port != 5672 {
		t.Errorf("a URL without a port: got %+v, %v, want Port = 5672 and no error", u, err)
	}
}

func TestCheckURL(t *testing.T) {
	for url, want := range map[string]bool{
		"amqp://host": true, "amqp://user:pass@host:5672/vhost": true, "amqp://user:p@ss@host/": true, "amqp://user:12%2334@host/%2F": true,
		"sqlite:a/b.db": true, "": true, "amqps://h/v?cacertfile=/x": true,
		"amqp://user:pass@[::1]:5672/": true, "postgres://u:p@h:5432,i:5432/d": true, "mysql://u:p@tcp(h:3306)/d": true, "sqlite:/a:b:c.db": true,
		"amqp://user:hunter2:5672": false, "amqp://user@hunter2@host": false, "amqp://user@hunter2@host:5672/v": false, "http://user:hunter2:15672": false,
		"amqp://user:12#34@host": false, "amqp://user:12/34@host": false, "amqp://user:12?34@host": false, "amqp://host/#x": false,
	} {
		if err := Check(url); (err == nil) != want {
			t.Errorf("Check(%q): got %v, want an error: %t", url, err, !want)
		}
	}
}

// A password appears neither in the redacted URL nor in an error, whatever text surrounds it.
func FuzzURL(f *testing.F) {
	for _, around := range [][2]string{
		{"", ""}, {"12/", ""}, {"a@b/", ""}, {"12?x=", ""}, {"12#", "#"}, {"%", ""}, {":", ":"}, {"@", "@"},
		{"]", "["}, {"\x00", "\n"}, {"12/?password=", "&"}, {"ä", "%2"},
	} {
		f.Add("amqp", around[0], around[1])
	}
	f.Add("", "a", "b")
	f.Add("postgres", "", "/")
	f.Fuzz(func(t *testing.T, scheme, before, after string) {
		const secret = "Hunter-2-hunter"
		s := scheme + "://user:" + before + secret + after + "@host:5672/vhost"
		shown := Redact(s)
		// Skip schemes that contain the secret, because no URL has its password there. A fuzzed scheme can contain a
		// colon, which terminates the scheme.
		if strings.Contains(scheme, secret) {
			return
		}
		if strings.Contains(shown, secret) {
			t.Fatalf("Redact(%q) = %q, want it without %q", s, shown, secret)
		}
		if again := Redact(shown); strings.Contains(again, secret) {
			t.Fatalf("Redact(%q) = %q, want it without %q", shown, again, secret)
		}
		u, err := Parse(s)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("Parse: got the error %q, want it without the password", err)
			}
			return
		}
		if u.Host == "" || u.Port <= 0 {
			t.Fatalf("Parse of %q: got host %q and port %d, want a host and a port", s, u.Host, u.Port)
		}
		// A correctly percent-encoded password is parsed completely.
		encoded := "amqp://" + url.UserPassword("user", before+secret+after).String() + "@host/"
		if u, err = Parse(encoded); err != nil || u.Password != before+secret+after || strings.Contains(Redact(encoded), secret) {
			t.Fatalf("Parse of %q: got password %q, %v, want %q, no error, and no %q in the redacted URL", encoded, u.Password, err, before+secret+after, secret)
		}
	})
}
