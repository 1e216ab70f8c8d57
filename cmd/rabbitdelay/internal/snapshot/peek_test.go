package snapshot

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
	"github.com/rabbitdelay/rabbitdelay/internal/plan"
)

// The management API encodes missing properties or headers of a message as an empty list, which must be accepted.
func TestPeekAtMessagesWithoutProperties(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[
			{"routing_key":"a","properties":[]},
			{"routing_key":"b","properties":{"headers":[]}},
			{"routing_key":"c","properties":{"delivery_mode":2}},
			{"routing_key":"d","properties":{"headers":{"rabbitdelay-destination":"q"}}}]`)
	}))
	defer s.Close()
	i, err := live.NewManagement(live.ManagementConfig{URL: s.URL, Vhost: "/"})
	if err != nil {
		t.Fatal(err)
	}
	c := collector{cfg: doctor.Config{Prefix: "delay"}, src: Source{Management: i, Peek: 4}, managed: true}
	c.snap.Version = "4.3.0"
	c.snap.Live.Queues = map[string]plan.Queue{"delay.parked": {Messages: 4}}
	if err := c.peek(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []doctor.Parked{{RoutingKey: "a"}, {RoutingKey: "b"}, {RoutingKey: "c"}, {RoutingKey: "d", Destination: "q"}}
	if !slices.Equal(c.snap.ParkedSamples, want) {
		t.Errorf("got the parked messages %+v (notes %v), want %+v", c.snap.ParkedSamples, c.snap.Notes, want)
	}
}
