package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// who returns the addresses to which a client with this configuration connects, and its user and password if they are
// set separately.
func who(t *testing.T, c *Config) string {
	t.Helper()
	var hosts []string
	for _, u := range c.Broker.nodes() {
		hosts = append(hosts, string(u))
	}
	cfg, err := c.Client(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Login == nil {
		return strings.Join(hosts, " ")
	}
	user, password, err := cfg.Login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s as %s:%s", strings.Join(hosts, " "), user, password)
}

// A user and a password can be set separately from the URL, without escaping. A URL with a user from a source with a
// higher priority replaces a separate user and password.
func TestLogin(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte("from a file\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flag := map[string]Override{"broker.url": {"amqp://flag:pw@f/", "--url"}}
	for _, c := range []struct {
		name, file string
		env        map[string]string
		flags      map[string]Override
		want       string
	}{
		{"in the URL", "{url: 'amqp://u:p@h'}", nil, nil, "amqp://u:p@h"},
		{"separate", "{url: 'amqp://h', username: shop, password: 'a@/%#'}", nil, nil, "amqp://h as shop:a@/%#"},
		{"instead of the one in the URL", "{url: 'amqp://u:p@h', username: shop, password: x}", nil, nil, "amqp://u:p@h as shop:x"},
		{"the password alone", "{url: 'amqp://u:p@h', password: x}", nil, nil, "amqp://u:p@h as u:x"},
		{"a file", "{url: 'amqp://h', username: shop, password_file: " + secret + "}", nil, nil, "amqp://h as shop:from a file"},
		{"next to AMQP_URL", "{username: shop, password: x}", map[string]string{"AMQP_URL": "amqp://other"}, nil, "amqp://other as shop:x"},
		{"several", "{urls: ['amqp://a', 'amqp://b'], username: shop, password: x}", nil, nil, "amqp://a amqp://b as shop:x"},
		{"urls next to url", "{url: 'amqp://c', urls: ['amqp://a']}", nil, nil, "amqp://c amqp://a"},
		{"several and AMQP_URL", "{urls: ['amqp://a']}", map[string]string{"AMQP_URL": "amqp://other"}, nil, "amqp://a"},
		{
			"password by the environment", "{url: 'amqp://h', username: shop, password_file: /none}",
			map[string]string{"RABBITDELAY_BROKER_PASSWORD": "env"}, nil, "amqp://h as shop:env",
		},
		{
			"file by the environment", "{url: 'amqp://h', username: shop, password: x}",
			map[string]string{"RABBITDELAY_BROKER_PASSWORD_FILE": secret}, nil, "amqp://h as shop:from a file",
		},
		{"URLs by the environment", "{url: 'amqp://u:p@h'}", map[string]string{"RABBITDELAY_BROKER_URLS": "amqp://a,amqp://b"}, nil, "amqp://a amqp://b"},
		{
			"user by the environment", "{url: 'amqp://u:p@h'}",
			map[string]string{"RABBITDELAY_BROKER_USERNAME": "e", "RABBITDELAY_BROKER_PASSWORD": "f"}, nil,
			"amqp://u:p@h as e:f",
		},
		{"a flag", "{urls: ['amqp://a', 'amqp://b'], username: shop, password: x}", nil, flag, "amqp://flag:pw@f/"},
		{"a flag without a user", "{username: shop, password: x}", nil, map[string]Override{"broker.url": {"amqp://f/", "--url"}}, "amqp://f/ as shop:x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			got, err := load([]byte("broker: "+c.file+"\n"), Source{Overrides: c.flags})
			if err != nil {
				t.Fatal(err)
			}
			if w := who(t, got); w != c.want {
				t.Errorf("the client connects to %s, want %s", w, c.want)
			}
		})
	}
}

func TestLoginIsRefused(t *testing.T) {
	for file, want := range map[string]string{
		"{username: shop}":                      "line 1, column 20: broker.username: has no password; set broker.password or broker.password_file, or put both into broker.url",
		"{password: hunter2, password_file: x}": "line 1, column 44: broker.password_file: is set together with broker.password; set only one of them",
		"{password: ''}":                        "line 1, column 20: broker.password: is empty; give a value, or leave it out for the default",
		"{password: [hunter2]}":                 "line 1, column 20: broker.password: expected a single value, got a list",
		"{urls: ['amqp://a', 'amqps://b']}":     "line 1, column 16: broker.urls[1]: expected the same scheme as the other URLs; the nodes of a cluster must be all amqp:// or all amqps://",
		"{url: 'amqps://h', password: hunter2, external_auth: true, tls: {cert: a, key: b}}": "line 1, column 38: broker.password: has no effect with broker.external_auth, which logs in with the client certificate; remove one of the two",
	} {
		_, err := load([]byte("broker: "+file+"\n"), Source{})
		if errText(err) != want {
			t.Errorf("load(%s): got %v, want %s", file, err, want)
		}
	}
	c := &Config{Broker: Broker{URL: "amqp://h", Username: "shop", PasswordFile: "/none"}}
	if _, err := c.Client(nil, nil); errText(err) != "broker.password_file: cannot read /none: no such file or directory" {
		t.Errorf(`Client: got %v, want "broker.password_file: cannot read /none: no such file or directory"`, err)
	}
	if _, err := c.Management(); errText(err) != "broker.password_file: cannot read /none: no such file or directory" {
		t.Errorf(`Management: got %v, want "broker.password_file: cannot read /none: no such file or directory"`, err)
	}
}

// The password file is read again for each connection, because the password may have changed.
func TestPasswordFileIsReadAgain(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	c := &Config{Broker: Broker{URL: "amqp://h", Username: "shop", PasswordFile: secret}}
	for _, word := range []string{"one", "two\n"} {
		if err := os.WriteFile(secret, []byte(word), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, want := who(t, c), "amqp://h as shop:"+strings.TrimSpace(word); got != want {
			t.Errorf("the client connects to %s, want %s", got, want)
		}
	}
}

func TestPasswordIsNotPrinted(t *testing.T) {
	c := &Config{Broker: Broker{Username: "shop", Password: "hunter2"}}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", *c), fmt.Sprintf("%#v", c), fmt.Sprintf("%q", c.Broker.Password), string(text)} {
		if strings.Contains(s, "hunter2") {
			t.Errorf("the configuration is printed as %s, want it without the password", s)
		}
	}
}
