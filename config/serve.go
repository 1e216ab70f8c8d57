package config

import (
	"net"
	"net/netip"
	"strings"

	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// DefaultListen is where rabbitdelay serve answers.
const DefaultListen = "127.0.0.1:8086"

func (k *checker) serve(s *Serve) {
	if _, _, err := net.SplitHostPort(s.Listen); err != nil {
		k.badf("serve.listen", "%q; expected HOST:PORT, such as %s or :8086", yamldoc.Clip(s.Listen), DefaultListen)
	}
	if p := s.PathPrefix; p != "" && (!strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.Contains(p, "//") || strings.ContainsAny(p, " ?#%;\"\\")) {
		k.badf("serve.path_prefix", "%q; expected a path such as /rabbitdelay", yamldoc.Clip(p))
	}
	if _, err := s.Proxy(); err != nil {
		k.badf("serve.trusted_proxy", "%q; expected an address or a network, such as 10.0.0.0/8", yamldoc.Clip(s.TrustedProxy))
	}
	for _, x := range []struct {
		path string
		err  error
	}{{"serve.title", shown.CheckTitle(s.Title)}, {"serve.color", shown.CheckColor(s.Color)}, {"serve.trace_url", shown.CheckTraceLink(s.TraceURL)}} {
		if x.err != nil {
			k.badf(x.path, "%v", x.err)
		}
	}
	k.pair("serve.tls", s.TLS.Cert, s.TLS.Key, "https needs both")
}

// Proxy returns the network of TrustedProxy; the zero value without one.
func (s *Serve) Proxy() (netip.Prefix, error) {
	switch {
	case s.TrustedProxy == "":
		return netip.Prefix{}, nil
	case strings.Contains(s.TrustedProxy, "/"):
		return netip.ParsePrefix(s.TrustedProxy)
	}
	a, err := netip.ParseAddr(s.TrustedProxy)
	if err != nil {
		return netip.Prefix{}, err
	}
	return a.Prefix(a.BitLen())
}

// Loopback reports whether Listen can be reached from this machine only.
func (s *Serve) Loopback() bool {
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
