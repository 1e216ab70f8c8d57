package amqpx

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/dlx"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestConfigNamesEveryFieldThatIsWrong(t *testing.T) {
	c := Config{
		URL: "amqp://u:s3cret@h:bad", URLs: []string{"http://u:s3cret@h"}, QueueType: "stream", Declare: "all",
		Heartbeat: time.Millisecond, DialTimeout: -1, ReconnectMin: time.Hour, ReconnectMax: time.Minute,
		SendTimeout: -1, RecheckInterval: -1, MaxInFlight: -1, MaxBody: -1, Hooks: []Hook{42},
		Destinations: []topology.Destination{{Queue: "q", Retry: &topology.Retry{MaxAttempts: -1}}},
	}.WithDefaults()
	err := c.Validate()
	if !errors.Is(err, ErrConfig) {
		t.Fatalf("%v does not wrap ErrConfig", err)
	}
	text := err.Error()
	for _, field := range []string{
		"URL:", "URLs[0]:", "QueueType is", "Declare is", "Heartbeat is", "DialTimeout is", "ReconnectMax is",
		"SendTimeout is", "RecheckInterval is", "MaxInFlight is", "MaxBody is", "Hooks[0]:", "Destinations[0].Retry:",
	} {
		if !strings.Contains(text, " "+field) {
			t.Errorf("%s is not reported in:\n%s", field, text)
		}
	}
	if strings.Contains(text, "s3cret") {
		t.Errorf("the password is in the error:\n%s", text)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	if err := (Config{URL: "amqp://h"}).WithDefaults().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesAnotherPrefixThanTheStrategys(t *testing.T) {
	b, err := dlx.NewBucket(dlx.BucketConfig{Prefix: "other"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(context.Background(), Config{URL: "amqp://127.0.0.1", Strategy: b})
	if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "give both the same") {
		t.Fatalf("got %v", err)
	}
}

func TestPasswordsAreRedacted(t *testing.T) {
	for in, want := range map[string]string{
		"amqp://user:s3cret@host:5672/v":           "amqp://user:xxxxx@host:5672/v",
		"amqps://user:s3%40cret@host/%2F":          "amqps://user:xxxxx@host/%2F",
		"postgres://u:s3cret@h/db?sslmode=disable": "postgres://u:xxxxx@h/db?sslmode=disable",
		"postgres://h/db?user=u&password=s3cret":   "postgres://h/db?password=xxxxx&user=u",
		"amqp://host":                              "amqp://host",
		"amqp://user:s3cret@host:port":             "(not a URL)",
		"amqp://user:s3%cret@host":                 "(not a URL)",
		"user:s3cret@tcp(host:3306)/db":            "user:(redacted)",
		"mysql:user:s3cret@tcp(host)/db":           "mysql:(redacted)",
		"":                                         "(not a URL)",
	} {
		if got := RedactURL(in); got != want || strings.Contains(got, "s3") {
			t.Errorf("RedactURL(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestBackoffIsCappedAndGrows(t *testing.T) {
	lo, hi := 100*time.Millisecond, 10*time.Second
	for attempt := range 2000 {
		d := backoff(lo, hi, attempt)
		if d < lo/2 || d > hi {
			t.Fatalf("attempt %d: %v", attempt, d)
		}
		if attempt > 10 && d < hi/2 {
			t.Fatalf("attempt %d: %v, want at least half the maximum", attempt, d)
		}
	}
}
