package auth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

func TestProxyIdentifies(t *testing.T) {
	p := &Proxy{
		Trusted:    []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
		UserHeader: "X-Forwarded-User", RoleHeader: "X-Forwarded-Groups", Operators: []string{"sre"}, Viewers: []string{"dev", "support"},
		Logger: zap.NewNop(),
	}
	for name, c := range map[string]struct {
		from         string
		user, groups []string
		want         service.Identity
		code         int
	}{
		"operator":            {"10.1.2.3:5", []string{"anna"}, []string{"sre"}, service.Identity{Name: "anna", Role: service.RoleOperator}, 0},
		"viewer":              {"10.1.2.3:5", []string{"ben"}, []string{"all, dev"}, service.Identity{Name: "ben", Role: service.RoleViewer}, 0},
		"bars":                {"10.1.2.3:5", []string{"ben"}, []string{"all|dev|x"}, service.Identity{Name: "ben", Role: service.RoleViewer}, 0},
		"of both":             {"10.1.2.3:5", []string{"eve"}, []string{"dev,sre"}, service.Identity{Name: "eve", Role: service.RoleOperator}, 0},
		"IPv4 in IPv6":        {"[::ffff:10.1.2.3]:5", []string{"anna"}, []string{"sre"}, service.Identity{Name: "anna", Role: service.RoleOperator}, 0},
		"IPv6 with a zone":    {"[fd00::1%eth0]:5", []string{"anna"}, []string{"sre"}, service.Identity{Name: "anna", Role: service.RoleOperator}, 0},
		"another address":     {"192.0.2.1:5", []string{"anna"}, []string{"sre"}, service.Identity{}, http.StatusForbidden},
		"no address":          {"@", []string{"anna"}, []string{"sre"}, service.Identity{}, http.StatusForbidden},
		"nobody":              {"10.1.2.3:5", nil, []string{"sre"}, service.Identity{}, http.StatusUnauthorized},
		"an empty name":       {"10.1.2.3:5", []string{" "}, []string{"sre"}, service.Identity{}, http.StatusUnauthorized},
		"a long name":         {"10.1.2.3:5", []string{strings.Repeat("x", 65)}, []string{"sre"}, service.Identity{}, http.StatusUnauthorized},
		"no group":            {"10.1.2.3:5", []string{"anna"}, nil, service.Identity{}, http.StatusForbidden},
		"another group":       {"10.1.2.3:5", []string{"anna"}, []string{"SRE,sales"}, service.Identity{}, http.StatusForbidden},
		"the user's own name": {"10.1.2.3:5", []string{"root", "anna"}, []string{"sre"}, service.Identity{}, http.StatusBadRequest},
		"the user's own role": {"10.1.2.3:5", []string{"anna"}, []string{"sre", "dev"}, service.Identity{}, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
			r.RemoteAddr = c.from
			r.Header["X-Forwarded-User"], r.Header["X-Forwarded-Groups"] = c.user, c.groups
			r.Header.Set("X-Forwarded-For", "10.9.9.9") // must have no effect, because only the connection's own address counts
			got, err := p.Identify(r)
			if got != c.want {
				t.Errorf("Identify returned %v, want %v", got, c.want)
			}
			refused, _ := errors.AsType[*RefusedError](err)
			if c.code == 0 && err != nil {
				t.Errorf("Identify returned the error %v, want nil", err)
			}
			if c.code != 0 && (refused == nil || refused.Code != c.code) {
				t.Errorf("Identify returned the error %v, want a *RefusedError with code %d", err, c.code)
			}
		})
	}
}

func TestProxyWithoutRoles(t *testing.T) {
	p := &Proxy{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, UserHeader: "X-User", Operators: []string{"operator"}, Logger: zap.NewNop()}
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = "127.0.0.1:5"
	r.Header.Set("X-User", "anna")
	r.Header.Set("X-Role", "operator")
	got, err := p.Identify(r)
	if want := (service.Identity{Name: "anna", Role: service.RoleViewer}); got != want || err != nil {
		t.Errorf("Identify returned %v and the error %v, want %v and nil", got, err, want)
	}
}
