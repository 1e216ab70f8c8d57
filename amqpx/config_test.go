package amqpx

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func TestConfigWithoutURLOrUnit(t *testing.T) {
	err := Config{Lead: 30}.WithDefaults().Validate()
	for _, says := range []string{"URL: empty; is a variable not set?", "Lead: 30ns: a time.Duration counts nanoseconds"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Validate of a config without a URL and with a lead of 30ns: got %v, want an error with %q", err, says)
		}
	}
}

func TestConfigNamesEveryFieldThatIsWrong(t *testing.T) {
	c := Config{
		URL: "amqp://u:s3cret@h:bad", URLs: []string{"http://u:s3cret@h"}, QueueType: "stream", Declare: "all",
		Heartbeat: time.Millisecond, DialTimeout: -1, ReconnectMin: time.Hour, ReconnectMax: time.Minute,
		SendTimeout: -1, RecheckInterval: -1, MaxInFlight: -1, MaxBody: -1, HeldBytes: -1,
		Destinations: []topology.Destination{{Queue: "q", Retry: &topology.Retry{MaxAttempts: -1}}},
	}.WithDefaults()
	err := c.Validate()
	if !errors.Is(err, ErrConfig) {
		t.Fatalf("Validate of a config with many invalid fields: got %v, want ErrConfig", err)
	}
	text := err.Error()
	for _, field := range []string{
		"URL:", "URLs[0]:", "QueueType is", "Declare is", "Heartbeat is", "DialTimeout is", "ReconnectMax is",
		"SendTimeout is", "RecheckInterval is", "MaxInFlight is", "MaxBody is", "HeldBytes is", "Destinations[0].Retry:",
	} {
		if !strings.Contains(text, " "+field) {
			t.Errorf("Validate: got this error, want %q in it:\n%s", " "+field, text)
		}
	}
	if strings.Contains(text, "s3cret") {
		t.Errorf("Validate: got this error, want it without the password:\n%s", text)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	if err := (Config{URL: "amqp://h"}).WithDefaults().Validate(); err != nil {
		t.Fatal(err)
	}
}

// Destinations to which no message could be sent are refused. So are duplicates, because only the first would apply.
func TestDestinationsOfTheConfig(t *testing.T) {
	err := Config{URL: "amqp://127.0.0.1/", Destinations: []topology.Destination{
		{}, {Queue: "q", Exchange: "e"}, {Queue: "delay.parked"}, {Queue: "q"}, {Exchange: "e", RoutingKey: "a"}, {Exchange: "e", RoutingKey: "b"},
		{Queue: "q", Retry: &topology.Retry{MaxAttempts: 2}},
	}}.WithDefaults().Validate()
	text := fmt.Sprint(err)
	for _, want := range []string{"Destinations[0]: ", "Destinations[1]: ", "Destinations[2]: ", "Destinations[6]: q is Destinations[3] too; list each destination once"} {
		if !strings.Contains(text, want) {
			t.Errorf("Validate: got %s, want an error with %q", text, want)
		}
	}
	if n := strings.Count(text, "Destinations["); n != 5 {
		t.Errorf("Validate: the error has %d indices, want 5: %s", n, text)
	}
}
