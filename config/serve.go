package config

import (
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/topology"
	"github.com/rabbitdelay/rabbitdelay/topology/yamldoc"
)

// DefaultListen is where rabbitdelay serve answers.
const DefaultListen = "127.0.0.1:8086"

// maxKeep is how long an audit can be kept.
const maxKeep = 3650 * 24 * time.Hour

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
	if (s.KeepAudit != 0 || k.given("serve.keep_audit")) && (s.KeepAudit < time.Hour || s.KeepAudit > maxKeep) {
		k.badf("serve.keep_audit", "%s; expected 1h to %s", topology.FormatDuration(s.KeepAudit), topology.FormatDuration(maxKeep))
	}
	if (s.TLS.Cert == "") != (s.TLS.Key == "") {
		missing, there := "key", "cert"
		if s.TLS.Cert == "" {
			missing, there = "cert", "key"
		}
		k.badf("serve.tls."+missing, "is not set, but serve.tls.%s is; https needs both", there)
	}
}

// Proxy is the network of TrustedProxy; the zero value without.
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

// Loopback tells whether Listen can be reached from this machine only.
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
