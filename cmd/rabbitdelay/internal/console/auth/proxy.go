package auth

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
)

// Proxy identifies callers by headers that a reverse proxy sets after it has authenticated the user. Use it if your
// organisation already has a login, such as oauth2-proxy in front of an identity provider.
type Proxy struct {
	// Trusted are the networks of the proxies. A request from any other address is refused, because any client can send
	// these headers.
	Trusted []netip.Prefix
	// UserHeader is the header with the user's name, for example X-Forwarded-User.
	UserHeader string
	// RoleHeader is the header with the user's groups, separated by commas or vertical bars. Without it, every user is
	// a viewer.
	RoleHeader string
	// Operators and Viewers are the groups that make a user an operator or a viewer. A user in both is an operator. A user
	// in neither is refused.
	Operators, Viewers []string

	Logger *zap.Logger
}

// RefusedError says why a request is refused, and with which status code.
type RefusedError struct {
	Code   int // status code of the HTTP response
	Reason string
}

func (e *RefusedError) Error() string { return e.Reason }

// maxUser is the maximum length of a name, which the audit stores.
const maxUser = 64

// Identify returns the caller of a request. The error is a *RefusedError.
func (p *Proxy) Identify(r *http.Request) (service.Identity, error) {
	if from := peer(r); !from.IsValid() || !inNetworks(p.Trusted, from) {
		p.Logger.Warn("refused a request to the console that did not come through the proxy", zap.String("address", r.RemoteAddr))
		return service.Identity{}, &RefusedError{http.StatusForbidden, "this console answers only requests through its proxy"}
	}
	name, err := one(r, p.UserHeader)
	if err != nil {
		return service.Identity{}, err
	}
	if name == "" {
		return service.Identity{}, &RefusedError{http.StatusUnauthorized, "the proxy sent no user name in " + p.UserHeader + "; log in at the proxy"}
	}
	if len(name) > maxUser {
		return service.Identity{}, &RefusedError{http.StatusUnauthorized, fmt.Sprintf("the user's name in %s has %d bytes; expected up to %d", p.UserHeader, len(name), maxUser)}
	}
	if p.RoleHeader == "" {
		return service.Identity{Name: name, Role: service.RoleViewer}, nil
	}
	groups, err := one(r, p.RoleHeader)
	if err != nil {
		return service.Identity{}, err
	}
	role, ok := p.role(groups)
	if !ok {
		return service.Identity{}, &RefusedError{http.StatusForbidden, fmt.Sprintf("%s is not in any group that may use this console; %s must contain one of: %s", name, p.RoleHeader, strings.Join(slices.Concat(p.Operators, p.Viewers), ", "))}
	}
	return service.Identity{Name: name, Role: role}, nil
}

func (p *Proxy) role(groups string) (service.Role, bool) {
	found := service.Role("")
	for group := range strings.FieldsFuncSeq(groups, func(r rune) bool { return r == ',' || r == '|' }) {
		switch group = strings.TrimSpace(group); {
		case slices.Contains(p.Operators, group):
			return service.RoleOperator, true
		case slices.Contains(p.Viewers, group):
			found = service.RoleViewer
		}
	}
	return found, found != ""
}

// one returns the only value of a header. Two values mean that the client sent the header, and the proxy added its own
// value instead of replacing the client's.
func one(r *http.Request, header string) (string, error) {
	values := r.Header.Values(header)
	if len(values) > 1 {
		return "", &RefusedError{http.StatusBadRequest, fmt.Sprintf("the request has the header %s %d times; configure the proxy to replace the header if a client sends it", header, len(values))}
	}
	return strings.TrimSpace(strings.Join(values, "")), nil
}

// peer returns the address of the other end of the connection. It is not valid if the connection has none.
func peer(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	ip, _ := netip.ParseAddr(host)
	return ip.Unmap().WithZone("")
}

// inNetworks reports whether one of the networks contains an address.
func inNetworks(networks []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(ip) })
}
