package live_test

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

func TestUnroutedPublishers(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() != "/api/vhosts/a%2Fb/channels" {
			t.Errorf(`the API got a request for %s, want the path "/api/vhosts/a%%2Fb/channels"`, r.URL)
		}
		_, _ = w.Write([]byte(`[
			{"user":"shop","connection_details":{"name":"c2"},"message_stats":{"drop_unroutable":1}},
			{"user":"shop","connection_details":{"name":"c1"},"message_stats":{"return_unroutable":2}},
			{"user":"shop","connection_details":{"name":"c2"},"message_stats":{"drop_unroutable":3}},
			{"user":"mail","connection_details":{"name":"c3"},"message_stats":{"drop_unroutable":0}},
			{"user":"read","connection_details":{"name":"c5"},"message_stats":[]},
			{"user":"new","connection_details":[],"message_stats":[]},
			{"user":"idle","connection_details":{"name":"c4"}}]`)) // ignore the error: if this fails, the client's call fails too
	}))
	t.Cleanup(s.Close)
	list, err := inspector(t, s).UnroutedPublishers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []live.Publisher{{User: "shop", Connection: "c1"}, {User: "shop", Connection: "c2"}}
	if !reflect.DeepEqual(list, want) {
		t.Errorf("UnroutedPublishers: got %v, want %v", list, want)
	}
}
