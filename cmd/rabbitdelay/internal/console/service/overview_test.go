package service

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/live"
)

// While the last overview is recent, readers do not wait for a slow inspection of the broker. After a period without
// readers, they wait for a new overview, because the last one may contain problems that have been fixed since.
func TestOverviewAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{Broker: func(context.Context) (status.Source, error) {
			<-time.After(5 * time.Second)
			return status.Source{}, errors.New("no broker")
		}})
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		for _, x := range []struct{ pause, took, age time.Duration }{
			{0, 5 * time.Second, 5 * time.Second},           // waits for the first overview
			{5 * time.Second, waiting, 12 * time.Second},    // receives the last overview after a short wait
			{4 * time.Second, waiting, 8 * time.Second},     // receives the overview whose inspection the previous reader started
			{time.Minute, 5 * time.Second, 5 * time.Second}, // waits for a new overview
		} {
			<-time.After(x.pause)
			began := time.Now()
			o, err := c.Overview(t.Context(), Identity{Role: RoleOperator})
			if err != nil {
				t.Fatalf("%+v: %v", x, err)
			}
			if took, age := time.Since(began), time.Since(o.At); took != x.took || age != x.age {
				t.Errorf("after a pause of %v: Overview returned after %v, and the overview is %v old, want %v and %v", x.pause, took, age, x.took, x.age)
			}
		}
	})
}

// says is a management API that always returns body, after a delay.
type says struct {
	body  string
	after time.Duration
}

func (s says) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(s.after):
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(s.body)), Request: r}, nil
}

// Message rates are unknown if the management API does not have them or does not answer in time.
func TestReadRates(t *testing.T) {
	for body, c := range map[string]struct {
		after time.Duration
		want  *Rates
		none  bool
	}{
		`{"message_stats":{"publish_details":{"rate":2.5},"deliver_get_details":{"rate":1}}}`: {0, &Rates{2.5, 1}, false},
		`{"message_stats":{"publish_details":{"rate":2.5}}}`:                                  {3 * time.Second, &Rates{2.5, 0}, false},
		`{"message_stats":{"publish_details":{"rate":0}}}`:                                    {6 * time.Second, nil, false},
		`{"message_stats":[]}`: {0, nil, true},
		`{"name":"/"}`:         {0, nil, true},
		"<html>":               {0, nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, err := live.NewManagement(live.ManagementConfig{URL: "http://management", Transport: says{body, c.after}})
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			r, none := readRates(t.Context(), m)
			if (r == nil) != (c.want == nil) || r != nil && *r != *c.want || none != c.none {
				t.Errorf("%s: got rates %+v and none = %t, want %+v and %t", body, r, none, c.want, c.none)
			}
		})
	}
}
