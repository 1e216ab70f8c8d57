package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/plugin"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestSettingsAreListed(t *testing.T) {
	list := Settings()
	if len(list) != len(settings)+1 {
		t.Fatalf("Settings lists %d settings, want %d", len(list), len(settings)+1)
	}
	for _, s := range list {
		if s.Path == "" || s.Type == "" || s.Default == "" || s.Meaning == "" || s.Variable == "" && s.Path != previousPath {
			t.Errorf("Settings has %+v, want a path, type, default, meaning and variable in it", s)
		}
	}
}

// Default values that settings describe in words match the code.
func TestSettingsDefaults(t *testing.T) {
	steps := func(c dlx.BucketConfig) string { return topology.FormatDuration(c.WithDefaults().Resolution) }
	for path, want := range map[string]string{
		"delay.bucket.resolution": steps(dlx.BucketConfig{}) +
			"; hex, radices and exact: " + steps(dlx.BucketConfig{Layout: dlx.LayoutHex}) +
			"; binary: " + steps(dlx.BucketConfig{Layout: dlx.LayoutBinary}),
		"broker.max_route_queues": "100",
		"delay.plugin.max":        topology.FormatDuration(plugin.MaxDelay),
	} {
		i := slices.IndexFunc(settings, func(s setting) bool { return s.path == path })
		if got := settings[i].byDefault(); got != want {
			t.Errorf("the list gives %s the default %q, want %q", path, got, want)
		}
	}
}

// The description of a setting ends with the allowed values, either from the setting's row or from the package that
// checks the value.
func TestSettingsMeanings(t *testing.T) {
	for path, want := range map[string]string{
		"broker.max_route_queues": ", 1 to 100000",
		"broker.send_timeout":     ", 1ms to 1d",
		"delay.native.queues":     ", 1 to 64",
		"delay.queue_type":        ": quorum or classic",
		"serve.keep_audit":        ", 1h to 3650d",
		"delay.plugin.min":        ", 0s to 49d17h2m47.295s",
	} {
		i := slices.IndexFunc(settings, func(s setting) bool { return s.path == path })
		if got := settings[i].meaning(); !strings.HasSuffix(got, want) {
			t.Errorf("meaning of %s: got %q, want it to end in %q", path, got, want)
		}
	}
}

// Variables that Kubernetes sets for services and Docker for links, and those of other programs, are not errors.
func TestServiceVariables(t *testing.T) {
	for name, value := range map[string]string{
		"RABBITDELAY_BROKER_SERVICE_HOST":          "10.0.0.1",
		"RABBITDELAY_BROKER_SERVICE_PORT":          "5672",
		"RABBITDELAY_BROKER_SERVICE_PORT_AMQP":     "5672",
		"RABBITDELAY_BROKER_PORT":                  "tcp://10.0.0.1:5672",
		"RABBITDELAY_BROKER_PORT_5672_TCP":         "tcp://10.0.0.1:5672",
		"RABBITDELAY_BROKER_PORT_5672_TCP_ADDR":    "10.0.0.1",
		"RABBITDELAY_BROKER_PORT_5672_TCP_PORT":    "5672",
		"RABBITDELAY_BROKER_PORT_5672_TCP_PROTO":   "tcp",
		"RABBITDELAY_DATABASE_PORT_53_UDP":         "udp://10.0.0.1:53",
		"RABBITDELAY_DELAY_RELAY_SERVICE_HOST":     "10.0.0.2",
		"RABBITDELAY_BROKER_URL_PORT_5672_TCP":     "tcp://10.0.0.1:5672",
		"RABBITDELAY_SERVICE_HOST":                 "10.0.0.3",
		"RABBITDELAY_PORT":                         "tcp://10.0.0.3:8080",
		"RABBITDELAY_NAME":                         "/app/rabbitdelay", // of a Docker link
		"RABBITDELAY_ENV_GOMAXPROCS":               "2",
		"RABBITDELAY_SKIP_INTEGRATION":             "1", // a variable of another program
		"RABBITDELAY_MANAGEMENT_URL":               "http://127.0.0.1:15672",
		"RABBITDELAY_START_BROKER":                 "node",
		"RABBITDELAY_BROKER_SERVICE_PORT_AMQP_TLS": "5671",
	} {
		t.Setenv(name, value)
	}
	if _, err := Load(Source{}); err != nil {
		t.Errorf("Load: got %v, want no error", err)
	}
	for _, s := range settings {
		if serviceVariable(variable(s.path), "tcp://x") {
			t.Errorf("serviceVariable(%q): got true, want false for the variable of a setting", variable(s.path))
		}
	}
}

func TestMisspeltVariables(t *testing.T) {
	for name, meant := range map[string]string{
		"RABBITDELAY_BROKR_URL":       "; did you mean RABBITDELAY_BROKER_URL",
		"RABBITDELAY_DELAY_STRATGY":   "; did you mean RABBITDELAY_DELAY_STRATEGY?",
		"RABBITDELAY_DATABASE_ULR":    "; did you mean RABBITDELAY_DATABASE_URL?",
		"RABBITDELAY_BROKER_PORT":     "; did you mean RABBITDELAY_BROKER_URL?",
		"RABBITDELAY_BROKER_HOSTNAME": "",
		"RABBITDELAY_QUEUE":           "",
		"RABBITDELAY_RETRY":           "",
		"RABBITDELAY_SOMETHING_ELSE":  "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "5672")
			_, err := Load(Source{})
			want := name + ": no setting has this environment variable; `rabbitdelay settings` lists the variables" + meant
			if !strings.HasPrefix(errText(err), want) || meant == "" && errText(err) != want {
				t.Errorf("Load: got %v, want an error that starts with %q", err, want)
			}
		})
	}
}

// The variables of this project's tests, which a developer's shell may have set, are not misspelt settings.
func TestDevelopmentVariables(t *testing.T) {
	text, err := os.ReadFile("../docs/development.md")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"RABBITDELAY_MARIADB_URL", "RABBITDELAY_MYSQL_URL", "RABBITDELAY_IMAGES", "RABBITDELAY_TEST_TIER"}
	for _, m := range regexp.MustCompile("(RABBITDELAY_[A-Z_]+)[`=]").FindAllStringSubmatch(string(text), -1) {
		if !slices.ContainsFunc(settings, func(s setting) bool { return variable(s.path) == m[1] }) {
			names = append(names, m[1])
		}
	}
	if len(names) < 9 {
		t.Fatalf("got the variables %v, want more than 8 from docs/development.md", names)
	}
	for _, name := range names {
		t.Setenv(name, "1")
	}
	if _, err := Load(Source{}); err != nil {
		t.Errorf("Load: got %v, want no error", err)
	}
}

// A whole section of the file cannot be set by a variable. Without an error, a service would start with defaults.
func TestVariablesOfWholeParts(t *testing.T) {
	for _, name := range []string{"RABBITDELAY_BROKER", "RABBITDELAY_DESTINATIONS", "RABBITDELAY_QUEUES", "RABBITDELAY_SCHEDULES", "RABBITDELAY_DELAY", "RABBITDELAY_DESTINATIONS_0_QUEUE"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "amqp://localhost")
			_, err := Load(Source{})
			if want := name + ": this part of the file"; !strings.HasPrefix(errText(err), want) {
				t.Errorf("Load: got %v, want an error that starts with %q", err, want)
			}
		})
	}
}

// An explicit 0 or an empty value is refused rather than replaced by the default. An empty value usually means that a
// variable is missing.
func TestExplicitZeroIsNotTheDefault(t *testing.T) {
	zero := map[string]string{
		"broker.heartbeat": "expected 1s to", "broker.dial_timeout": "expected 10ms to", "broker.reconnect_min": "expected 1ms to",
		"broker.reconnect_max": "expected 100ms to", "broker.send_timeout": "expected 1ms to",
		"broker.max_in_flight": "expected 1 to", "broker.max_body": "expected 1 to", "broker.held_bytes": "expected 1 to", "broker.max_route_queues": "expected 1 to",
		"delay.bucket.resolution": "expected 10ms or more", "delay.plugin.max": "expected 1ms to", "serve.keep_audit": "expected 1h to",
		"delay.native.queues": "expected 1 or more",
	}
	for _, s := range settings {
		value, want := "", errEmpty.Error()
		switch field := s.field.(type) {
		case *time.Duration, *int:
			value, want = "0", zero[s.path]
			if s.path == "delay.plugin.min" || s.path == "delay.lead" { // 0 is a valid value of these settings
				continue
			}
		case *bool, *[]int, *[]URL, *[]time.Duration:
			continue
		default:
			_ = field
		}
		_, err := load(nil, Source{Overrides: map[string]Override{s.path: {value, "--flag"}}})
		e, ok := errors.AsType[*Error](err)
		if want == "" {
			t.Errorf("%s: the test's map zero has no expected error for this setting, want one", s.path)
		}
		if !ok || len(e.Problems) != 1 {
			t.Errorf("%s given as %q: got %v, want an *Error with one problem", s.path, value, err)
			continue
		}
		p := e.Problems[0]
		if p.Path != s.path {
			t.Errorf("%s given as %q: the problem is reported for %s, want %s", s.path, value, p.Path, s.path)
		}
		if p.Origin != "--flag" {
			t.Errorf("%s given as %q: the origin of the problem is %s, want --flag", s.path, value, p.Origin)
		}
		if !strings.Contains(p.Message, want) {
			t.Errorf("%s given as %q: got the message %q, want one with %q", s.path, value, p.Message, want)
		}
	}
	_, err := load([]byte("delay:\n  previous:\n  - {layout: hex, resolution: 0s}\n"), Source{})
	if want := "line 3, column 31: delay.previous[0].resolution: 0s; expected 10ms or more"; !strings.Contains(errText(err), want) {
		t.Errorf("load with an explicit resolution of 0s: got %v, want an error with %q", err, want)
	}
	t.Setenv("RD_TEST_UNSET", "")
	_, err = load([]byte("broker:\n  url: ${RD_TEST_UNSET}\n"), Source{})
	if want := "line 2, column 8: broker.url: " + errEmpty.Error(); errText(err) != want {
		t.Errorf("load with an unset variable: got %v, want %s", err, want)
	}
}

func TestJitterZero(t *testing.T) {
	c, err := load([]byte(`destinations:
- {queue: a, retry: {jitter: 0}}
- {queue: b, retry: {jitter: 0.0}}
- {queue: c, retry: {backoff: 2s}}
`), Source{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{topology.NoJitter, topology.NoJitter, 0.2} {
		if r := c.Topology.Destinations[i].Retry.WithDefaults(); r.Jitter != want {
			t.Errorf("destination %d has a jitter of %v, want %v", i, r.Jitter, want)
		}
	}
	_, err = load([]byte(`destinations:
- {queue: a, retry: {max_attempts: 0, backoff: 0, max_backoff: 0s, multiplier: 0, jitter: -1}}
`), Source{})
	for _, want := range []string{
		"retry.max_attempts: expected 1 or more deliveries in total, got 0; omit the key for the default",
		"retry.backoff: expected 1ms or more, got 0", "retry.max_backoff: expected backoff or more, got 0",
		"retry.multiplier: expected 1 or more, got 0", "retry.jitter: expected 0 to 1, got -1",
	} {
		if !strings.Contains(errText(err), want) {
			t.Errorf("load with explicit zeros: got %v, want an error with %q", err, want)
		}
	}
}

// No error contains any part of a password, whichever special character the password contains, and wherever the URL is
// set.
func TestErrorsHidePasswords(t *testing.T) {
	t.Setenv("AMQP_URL", "amqp://127.0.0.1:1/")
	for _, char := range []string{"#", "/", "?", "@", "%", ":", " ", `"`, "'", "\\", "&", " #", "[", "]", "{", "*", "!", "|"} {
		for _, before := range []string{"12", "hunter2"} {
			password := before + char + "5tail"
			for path, format := range map[string]string{
				"broker.url": "amqp://user:%s@127.0.0.1:1/", "broker.urls": "amqp://user:%s@127.0.0.1:1/",
				"broker.management_url": "http://user:%s@127.0.0.1:1", "database.url": "postgres://user:%s@127.0.0.1:1/shop?connect_timeout=1",
			} {
				url := fmt.Sprintf(format, password)
				check := func(from string, c *Config, err error) {
					if err == nil {
						err = errors.Join(tryAll(t, c)...)
					}
					for _, secret := range []string{before, "5tail"} {
						if text := errText(err); strings.Contains(strings.ReplaceAll(text, "127.0.0.1", ""), secret) {
							t.Errorf("%s from a %s, with the password %q: got %s, want an error without %q", path, from, password, text, secret)
						}
					}
				}
				c, err := load(nil, Source{Overrides: map[string]Override{path: {url, "--url"}}})
				check("flag", c, err)
				c, err = load(nil, Source{Defaults: map[string]string{path: url}})
				check("default", c, err)
				section, key, _ := strings.Cut(path, ".")
				for _, quote := range []string{"", "'", `"`} {
					if quote == "" && char == " #" { // starts a comment in YAML
						continue
					}
					value := quote + url + quote
					if path == "broker.urls" {
						value = "[" + value + "]"
					}
					c, err = load(fmt.Appendf(nil, "%s:\n  %s: %s\n", section, key, value), Source{})
					check("file", c, err)
					c, err = load(fmt.Appendf(nil, "%s: {%s: %s}\n", section, key, value), Source{})
					check("file, flow", c, err)
					c, err = load(fmt.Appendf(nil, "%s:\n  %s:\nqueues: %s\n", section, value, value), Source{})
					check("file, misplaced", c, err)
				}
			}
		}
	}
}

// tryAll connects to everything in an accepted configuration, and returns the errors. No program listens on the
// configured ports.
func tryAll(t *testing.T, c *Config) []error {
	t.Helper()
	_, err := c.Dial(t.Context())
	errs := []error{err}
	if m, err := c.Management(); err != nil {
		errs = append(errs, err)
	} else {
		_, err := live.Internal(m).Inspect(t.Context(), topology.Topology{})
		errs = append(errs, err)
	}
	if c.Database.URL != "" {
		db, _, err := OpenDB(c.Database.URL)
		if err == nil {
			err = db.PingContext(t.Context())
			_ = db.Close()
		}
		errs = append(errs, err)
	}
	return errs
}
