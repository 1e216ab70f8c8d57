package tlsfiles_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	logs "go.uber.org/zap/zaptest/observer"

	"github.com/rabbitdelay/rabbitdelay/amqpx"
	"github.com/rabbitdelay/rabbitdelay/amqpx/amqptest"
	"github.com/rabbitdelay/rabbitdelay/amqpx/inspect"
	"github.com/rabbitdelay/rabbitdelay/internal/tlsfiles"
)

// authority is a certificate authority for a test.
type authority struct {
	testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{TB: t}
	a.cert, a.key, a.pem, _ = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign creates a certificate for 127.0.0.1. The authority signs it, except that its own certificate is self-signed.
func (a *authority) sign(tmpl *x509.Certificate) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
	a.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	tmpl.SerialNumber, tmpl.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	tmpl.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		a.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		a.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
}

// issue creates a certificate for a client or a server.
func (a *authority) issue(usage x509.ExtKeyUsage) (certPEM, keyPEM []byte) {
	a.Helper()
	_, _, certPEM, keyPEM = a.sign(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{usage}})
	return certPEM, keyPEM
}

// front terminates TLS in front of an in-memory broker. Its certificate and the authority that it trusts for clients
// can be replaced.
type front struct {
	url string
	cfg chan *tls.Config // buffers one configuration
}

func newFront(t *testing.T, srv *amqptest.Server) *front {
	t.Helper()
	plain, err := srv.Listen()
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(plain)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	f := &front{cfg: make(chan *tls.Config, 1)}
	f.cfg <- nil
	target := u.Host
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go f.serve(c, target)
		}
	}()
	u.Scheme, u.Host = "amqps", ln.Addr().String()
	f.url = u.String()
	return f
}

func (f *front) serve(c net.Conn, target string) {
	cfg := <-f.cfg
	f.cfg <- cfg
	s := tls.Server(c, cfg)
	defer func() { _ = s.Close() }()
	b, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", target)
	if err != nil {
		return
	}
	go func() { _, _ = io.Copy(b, s); _ = b.Close() }()
	_, _ = io.Copy(s, b)
}

// trusts replaces the front's certificate with one from the authority, and makes the front accept clients with such
// certificates only.
func (f *front) trusts(a *authority) {
	a.Helper()
	pair, err := tls.X509KeyPair(a.issue(x509.ExtKeyUsageServerAuth))
	if err != nil {
		a.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	<-f.cfg
	f.cfg <- &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
}

// After the three files are replaced, the next handshake uses the new certificates. Until all files are complete and
// match, the old certificates stay in use.
func TestFilesAreReadAgain(t *testing.T) {
	srv := amqptest.NewServer(amqptest.Options{})
	t.Cleanup(srv.Close)
	f, before, now := newFront(t, srv), newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	files := tlsfiles.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, key := before.issue(x509.ExtKeyUsageClientAuth)
	write(files.CA, before.pem)
	write(files.Cert, cert)
	write(files.Key, key)
	core, seen := logs.New(zap.InfoLevel)
	get, err := files.Load(zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	connect := func() error {
		conn, err := inspect.Dial(t.Context(), amqpx.Config{URL: f.url, GetTLS: get})
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	f.trusts(before)
	if err := connect(); err != nil {
		t.Fatal(err)
	}

	cert, key = now.issue(x509.ExtKeyUsageClientAuth)
	for _, broken := range []func(){
		func() { write(files.Cert, cert) },
		func() { write(files.Key, key[:len(key)/2]) },
		func() { write(files.CA, nil) },
		func() {
			if err := os.Remove(files.CA); err != nil {
				t.Fatal(err)
			}
		},
	} {
		broken()
		for range 2 {
			if err := connect(); err != nil {
				t.Errorf("connect with partly replaced files: got %v, want nil", err)
			}
		}
	}
	if got := seen.FilterMessageSnippet("cannot be used").Len(); got < 3 || got > 4 {
		t.Errorf("files that cannot be used: got %d warnings, want 3 or 4, one for each state of the files: %v", got, seen.All())
	}

	f.trusts(now)
	if err := connect(); err == nil {
		t.Error("connect with the old files to a broker with a new authority: got nil, want an error")
	}
	write(files.Key, key)
	write(files.CA, now.pem)
	if err := connect(); err != nil {
		t.Errorf("connect with the new files: got %v, want nil", err)
	}
}
