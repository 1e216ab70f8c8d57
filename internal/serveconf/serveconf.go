// Package serveconf contains the section serve of the settings file. Package config reads and checks it together with
// the other sections, but only the operator's program uses it. It is therefore not part of the public config.Config.
package serveconf

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/yamldoc"
)

// DefaultListen is the default address on which rabbitdelay serve listens.
const DefaultListen = "127.0.0.1:8086"

// Settings contains the settings of rabbitdelay serve.
type Settings struct {
	// Listen is the address to listen on, HOST:PORT. Default DefaultListen.
	Listen string
	// Users is the path of the file with users and tokens.
	Users string
	// PathPrefix is a prefix of all paths, such as /rabbitdelay.
	PathPrefix string
	// Proxy describes the reverse proxy in front of serve.
	Proxy Proxy
	// Title is shown at the top of every page. Default rabbitdelay.
	Title string
	// Color is the colour of a line at the top of all pages, such as #c62828.
	Color string
	// TraceURL is a template for links to traces, in which {id} is replaced by the trace's id.
	TraceURL string
	// Discarded is the directory in which the console stores the messages that it discards.
	Discarded string
	// KeepAudit is the retention time of the audit log and the jobs. Default 90 days, at least one hour.
	KeepAudit time.Duration
	// TLS contains the certificate files for https.
	TLS TLS
}

// TLS contains the paths of PEM files.
type TLS struct {
	Cert string // certificate chain
	Key  string // its private key
}

// Proxy describes a reverse proxy in front of rabbitdelay serve. If UserHeader is set, the proxy has authenticated the
// user, and serve refuses requests that do not come from a trusted address.
type Proxy struct {
	// Trusted are the addresses and networks of the proxies, such as 10.0.0.0/8. Their X-Forwarded-For header is
	// trusted as well; login attempts are counted by the address in it.
	Trusted []string
	// UserHeader is the header with the name of the authenticated user, such as X-Forwarded-User.
	UserHeader string
	// RoleHeader is the header with the user's groups, separated by commas or vertical bars, such as
	// X-Forwarded-Groups. Without it, every user is a viewer.
	RoleHeader string
	// Operators and Viewers are the groups that make a user an operator or a viewer. Default operator and viewer.
	Operators, Viewers []string
}

// SetDefaults sets the defaults of the fields that are never empty.
func (s *Settings) SetDefaults() {
	s.Listen = cmp.Or(s.Listen, DefaultListen)
	if len(s.Proxy.Operators) == 0 {
		s.Proxy.Operators = []string{"operator"}
	}
	if len(s.Proxy.Viewers) == 0 {
		s.Proxy.Viewers = []string{"viewer"}
	}
}

// Loopback reports whether Listen can be reached only from this machine.
func (s *Settings) Loopback() bool {
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// Networks returns the networks of Trusted. It returns an error that names the first item that is neither an address
// nor a network.
func (p *Proxy) Networks() ([]netip.Prefix, error) {
	list := make([]netip.Prefix, len(p.Trusted))
	for i, text := range p.Trusted {
		network, err := netip.ParsePrefix(text)
		if a, aerr := netip.ParseAddr(text); aerr == nil {
			network, err = a.Unmap().Prefix(a.Unmap().BitLen())
		}
		if err != nil {
			return nil, fmt.Errorf("%q; expected an address or a network, such as 10.0.0.0/8", yamldoc.Clip(text))
		}
		list[i] = network
	}
	return list, nil
}

// of is set by package config, which defines Config.
var of func(config any) *Settings

// SetOf sets the function behind Of. Package config calls it, because only that package can read the section, which is
// not exported.
func SetOf(f func(config any) *Settings) { of = f }

// Of returns the section serve of a *config.Config.
func Of(config any) *Settings { return of(config) }
