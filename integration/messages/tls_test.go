package messages_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/integration/broker"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

// authority issues certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a authority) issue(t testing.TB, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// tlsFront terminates TLS in front of the broker, requires a client certificate, and returns the
// amqps URL.
func tlsFront(t testing.TB, a authority) string {
	t.Helper()
	u, err := url.Parse(broker.Shared(t, broker.Options{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{a.issue(t, x509.ExtKeyUsageServerAuth)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: a.pool(), MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	target := u.Host
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				b, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(b, c); _ = b.Close() }()
				_, _ = io.Copy(c, b)
			}()
		}
	}()
	u.Scheme, u.Host = "amqps", ln.Addr().String()
	return u.String()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	front := tlsFront(t, ours)
	client := ours.issue(t, x509.ExtKeyUsageClientAuth)
	t.Run("our CA and a client certificate", func(t *testing.T) {
		c := suite.OpenClient(t, amqpx.Config{URL: front, TLS: &tls.Config{
			RootCAs: ours.pool(), Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12,
		}})
		q := suite.NewQueue(t)
		col := newCollector()
		suite.Consume(t, c, q, col.handle)
		suite.Send(t, c, amqpx.Message{Queue: q, Delay: 100 * time.Millisecond})
		col.await(t, "the message", func(got []*amqpx.Delivery) bool { return len(got) == 1 })
	})
	for name, cfg := range map[string]*tls.Config{
		"another CA":            {RootCAs: others.pool(), Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12},
		"the system's CAs":      nil,
		"another server's name": {RootCAs: ours.pool(), ServerName: "example.org", Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12},
	} {
		t.Run("refused: "+name, func(t *testing.T) {
			ctx, cancel := contextWithin(t, suite.Patience)
			defer cancel()
			_, err := amqpx.Open(ctx, amqpx.Config{URL: front, TLS: cfg})
			if err == nil || !strings.Contains(err.Error(), "certificate") {
				t.Fatalf(`got %v, want an error with "certificate"`, err)
			}
			if ctx.Err() != nil {
				t.Error("Open retried until the deadline, want it to return the permanent error immediately")
			}
		})
	}
}

// Invalid credentials fail immediately, and the password does not appear in the error.
func TestOpenWithBadCredentials(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(broker.Shared(t, broker.Options{}).URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("guest", "s3cret-and-wrong")
	ctx, cancel := contextWithin(t, suite.Patience)
	defer cancel()
	_, err = amqpx.Open(ctx, amqpx.Config{URL: u.String()})
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "403") {
		t.Fatalf(`got %v, want an error with "403" and no "s3cret" in it`, err)
	}
	if ctx.Err() != nil {
		t.Error("Open retried until the deadline, want it to return the permanent error immediately")
	}
}

func TestOpenWithoutABroker(t *testing.T) {
	t.Parallel()
	ctx, cancel := contextWithin(t, 500*time.Millisecond)
	defer cancel()
	_, err := amqpx.Open(ctx, suite.FastReconnect(amqpx.Config{URL: "amqp://guest:s3cret@127.0.0.1:1/"}))
	if !errors.Is(err, ctx.Err()) || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "s3cret") {
		t.Fatalf(`got %v, want %v with "127.0.0.1:1" and no "s3cret" in it`, err, ctx.Err())
	}
}
