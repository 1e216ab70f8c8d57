package snapshot

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/doctor"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// fixed is a management API with fixed answers. Its keys are prefixes of the requests' paths.
type fixed map[string]struct {
	code int
	body string
}

func (f fixed) RoundTrip(r *http.Request) (*http.Response, error) {
	code, body := http.StatusOK, "[]"
	for path, x := range f {
		if strings.HasPrefix(r.URL.Path, path) {
			code, body = x.code, x.body
		}
	}
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func managed(t *testing.T, api http.RoundTripper) *collector {
	t.Helper()
	m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: api})
	if err != nil {
		t.Fatal(err)
	}
	return &collector{src: Source{Management: m}, managed: true, clocks: map[string]map[string][]reading{}}
}

// A 503 counts as an alarm only if it lists alarms, because a proxy that cannot reach the broker also answers 503.
func TestAlarms(t *testing.T) {
	for name, c := range map[string]struct {
		code      int
		body      string
		alarms    int // -1 if unknown
		unchecked bool
	}{
		"none":               {200, `{"status":"ok"}`, 0, false},
		"memory":             {503, `{"status":"failed","alarms":[{"node":"rabbit@a","resource":"memory"}]}`, 1, false},
		"a proxy":            {503, "<html>Service Unavailable</html>", -1, true},
		"a proxy, with JSON": {503, `{"message":"no healthy upstream"}`, -1, true},
		"refused":            {401, "", -1, true},
	} {
		t.Run(name, func(t *testing.T) {
			c0 := managed(t, fixed{"/api/health/checks/alarms": {c.code, c.body}})
			c0.alarms(t.Context())
			if have := len(c0.snap.Alarms); have != max(0, c.alarms) || (c0.snap.Alarms == nil) != (c.alarms < 0) {
				t.Errorf("got Alarms = %v, want %d alarms, or nil if negative", c0.snap.Alarms, c.alarms)
			}
			if (len(c0.snap.Unchecked) > 0) != c.unchecked || c.unchecked && c0.snap.Unchecked[0].Area != doctor.AreaAlarms {
				t.Errorf("got Unchecked = %v, want AreaAlarms in it: %t", c0.snap.Unchecked, c.unchecked)
			}
		})
	}
}

// To a user without the monitoring tag, the management API does not show the name of the node that answers. The node's
// clock is measured anyway.
func TestDatesOfAnUnknownNode(t *testing.T) {
	for body, node := range map[string]string{`{"node":"rabbit@a"}`: "rabbit@a", "[]": ""} {
		c := managed(t, dated{fixed{"/api/overview": {200, body}}})
		c.src.Now = time.Now
		c.dates(t.Context(), c.src.Management.Each())
		if got := c.estimates(); len(got) != 1 || got[0].Node != node || got[0].Method != methodDate {
			t.Errorf("%s: got the clocks %+v, want one with Node = %v and Method = %v", body, got, node, methodDate)
		}
		c.heard("rabbit@b", methodDeath, newReading(time.Now(), time.Now(), time.Now(), deathResolution))
		if got := c.estimates(); (len(got) == 1) != (node == "") || got[len(got)-1].Node != "rabbit@b" {
			t.Errorf("%s: got the clocks %+v, want rabbit@b last, replacing an unnamed node", body, got)
		}
	}
}

// dated adds a Date header to a management API's answers.
type dated struct{ fixed }

func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := d.fixed.RoundTrip(r)
	if err == nil {
		resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	return resp, err
}

// The management API lists all connections only to a user with the monitoring tag, which may also list the nodes. To
// other users it shows only their own connections.
func TestClientsOfOthersAreUnknown(t *testing.T) {
	for code, known := range map[int]bool{200: true, 401: false} {
		c := managed(t, fixed{"/api/nodes": {code, "[]"}, "/api/overview": {200, "{}"}, "/api/health": {200, `{"status":"ok"}`}})
		c.management(t.Context())
		if (c.snap.Clients != nil) != known {
			t.Errorf("/api/nodes answers with %d: got Clients = %v, want them known: %t", code, c.snap.Clients, known)
		}
	}
}
