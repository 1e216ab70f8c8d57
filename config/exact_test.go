package config

import (
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
)

// The setting delay.exact sets a default lead and resolution. Explicit values take precedence.
func TestExact(t *testing.T) {
	for text, want := range map[string][2]time.Duration{ // lead and resolution
		"delay: {strategy: bucket}":                                  {0, 0},
		"delay: {lead: 2s}":                                          {2 * time.Second, 0},
		"delay: {exact: true}":                                       {400 * time.Millisecond, 100 * time.Millisecond},
		"delay: {exact: true, lead: 1s}":                             {time.Second, 100 * time.Millisecond},
		"delay: {exact: true, lead: 0s}":                             {0, 100 * time.Millisecond},
		"delay: {exact: true, bucket: {resolution: 1s}, lead: 1.1s}": {1100 * time.Millisecond, time.Second},
		"delay: {exact: true, bucket: {layout: binary}}":             {400 * time.Millisecond, 0},
	} {
		c := mustLoad(t, "broker: {url: 'amqp://h/'}\ndestinations: [{queue: q}, {queue: slow, lead: 5s}]\n"+text+"\n")
		s, err := c.Offline()
		if err != nil {
			t.Fatalf("%s: Offline: got %v, want no error", text, err)
		}
		var client amqpx.Config
		if client, err = c.Client(s, nil); err != nil {
			t.Fatalf("%s: Client: got %v, want no error", text, err)
		}
		if client.Lead != want[0] || c.Delay.Bucket.Resolution != want[1] {
			t.Errorf("%s: got the lead %v and the resolution %v, want %v and %v", text, client.Lead, c.Delay.Bucket.Resolution, want[0], want[1])
		}
		if lead := client.Destinations[1].Lead; lead == nil || *lead != 5*time.Second {
			t.Errorf("%s: got the lead %v of the destination slow, want 5s", text, lead)
		}
	}
	for text, want := range map[string]string{
		"delay: {lead: 61s}": "delay.lead: 1m1s; expected 0s to 1m",
		"delay: {lead: 1s, strategy: ttl, ttl: {delays: [1m]}}":    "delay.lead: 1s; the ttl strategy",
		"delay: {exact: true, strategy: ttl, ttl: {delays: [1m]}}": "delay.exact: true; the ttl strategy",
		"delay: {exact: true, bucket: {layout: celery}}":           "delay.exact: true; consumers of the layout celery",
		"destinations: [{queue: q, lead: 2m}]":                     "destinations[0].lead: expected 0 to 1m",
	} {
		if _, err := load([]byte(text+"\n"), Source{}); !strings.Contains(errText(err), want) {
			t.Errorf("load(%s): got %v, want an error with %q", text, err, want)
		}
	}
}
