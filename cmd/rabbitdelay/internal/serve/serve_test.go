package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console"
	"github.com/rabbitdelay/rabbitdelay/config"
	"github.com/rabbitdelay/rabbitdelay/internal/serveconf"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// The next connection uses a renewed certificate. While only one of the two files has been replaced, so that the
// certificate and the key do not match, connections use the previous pair.
func TestServeUsesRenewedCertificates(t *testing.T) {
	dir := t.TempDir()
	files := serveconf.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	write := func(file, kind string, der []byte, err error) {
		t.Helper()
		if err == nil {
			err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var key *ecdsa.PrivateKey
	renew := func(serial int64) {
		t.Helper()
		var err error
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
		write(files.Cert, "CERTIFICATE", der, err)
	}
	writeKey := func() {
		t.Helper()
		der, err := x509.MarshalECPrivateKey(key)
		write(files.Key, "EC PRIVATE KEY", der, err)
	}
	renew(1)
	if _, err := serveTLS(files, zap.NewNop()); err == nil || !strings.HasPrefix(err.Error(), "serve.tls.key: cannot read ") {
		t.Errorf("without the key file: got error %v, want one beginning with \"serve.tls.key: cannot read \"", err)
	}
	writeKey()
	cfg, err := serveTLS(files, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func(c net.Conn) {
				_ = c.(*tls.Conn).HandshakeContext(t.Context()) // the client reads the certificate's serial number
				_ = c.Close()
			}(c)
		}
	}()
	expect := func(when string, serial int64) {
		t.Helper()
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // the test only reads the serial number
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer c.Close()
		if got := c.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != serial {
			t.Errorf("%s: got certificate %d, want %d", when, got, serial)
		}
	}
	expect("with the first certificate", 1)
	renew(2)
	expect("with the new certificate and the old key", 1)
	writeKey()
	expect("renewed", 2)
}

// The default in the list of settings is the same as in the console.
func TestKeepAuditDefault(t *testing.T) {
	list := config.Settings()
	i := slices.IndexFunc(list, func(s config.Setting) bool { return s.Path == "serve.keep_audit" })
	if got, want := list[i].Default, topology.FormatDuration(console.DefaultKeepAudit); got != want {
		t.Errorf("the default of serve.keep_audit in the list of settings is %s, want %s", got, want)
	}
}
