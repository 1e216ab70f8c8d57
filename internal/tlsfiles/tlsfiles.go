// Package tlsfiles reloads certificates and keys while a process runs.
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"go.uber.org/zap"
)

// Files contains the paths of PEM files that may be renewed while the process runs.
type Files struct {
	CA         string // certificates to trust instead of the system's; empty to use the system's
	Cert       string // client certificate; empty for none
	Key        string // its private key
	ServerName string // expected name in the broker's certificate; default: the host of the URL
}

// Error is returned for a file that cannot be used.
type Error struct {
	Field string // CA, Cert or Key
	Text  string
}

func (e *Error) Error() string { return e.Text }

// Load reads the files, and returns a function for amqpx.Config.GetTLS that reads them again at each handshake. If the
// files are unusable at that moment, for example because a certificate has been replaced before its key, the function
// logs the error and keeps the last usable files until the next handshake. The error of Load is an *Error. If log is
// nil, nothing is logged.
func (f Files) Load(log *zap.Logger) (current func() *tls.Config, err error) {
	if log == nil {
		log = zap.NewNop()
	}
	r := &reloader{files: f, log: log}
	if r.raw, err = f.read(); err != nil {
		return nil, err
	}
	if r.cfg, err = f.parse(r.raw); err != nil {
		return nil, err
	}
	return r.current, nil
}

// Read reads the files once. The error is an *Error.
func (f Files) Read() (*tls.Config, error) {
	raw, err := f.read()
	if err != nil {
		return nil, err
	}
	return f.parse(raw)
}

// reloader keeps the last usable configuration.
type reloader struct {
	files Files
	log   *zap.Logger

	mu  sync.Mutex
	raw pemFiles
	cfg *tls.Config
	bad string // the error that was logged last
}

// pemFiles contains the contents of the files.
type pemFiles struct{ ca, cert, key string }

func (r *reloader) current() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	raw, err := r.files.read()
	if err == nil && raw == r.raw {
		r.bad = ""
		return r.cfg
	}
	var cfg *tls.Config
	if err == nil {
		cfg, err = r.files.parse(raw)
	}
	if err != nil {
		if text := err.Error(); text != r.bad {
			r.bad = text
			r.log.Warn("the changed TLS files cannot be used; the previous ones stay in use", zap.Error(err))
		}
		return r.cfg
	}
	r.raw, r.cfg, r.bad = raw, cfg, ""
	r.log.Info("the TLS files have changed; using the new ones")
	return r.cfg
}

func (f Files) read() (raw pemFiles, err error) {
	for _, x := range []struct {
		name, field string
		into        *string
	}{{f.CA, "CA", &raw.ca}, {f.Cert, "Cert", &raw.cert}, {f.Key, "Key", &raw.key}} {
		if x.name == "" {
			continue
		}
		text, err := os.ReadFile(x.name)
		if err != nil {
			if pe, ok := errors.AsType[*fs.PathError](err); ok {
				err = pe.Err
			}
			return raw, &Error{x.field, fmt.Sprintf("cannot read %s: %v", x.name, err)}
		}
		*x.into = string(text)
	}
	return raw, nil
}

func (f Files) parse(raw pemFiles) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM([]byte(raw.ca)) {
			return nil, &Error{"CA", f.CA + " contains no certificate in PEM format"}
		}
	}
	if f.Cert != "" || f.Key != "" {
		pair, err := tls.X509KeyPair([]byte(raw.cert), []byte(raw.key))
		if err != nil {
			return nil, &Error{"Cert", fmt.Sprintf("certificate %s with key %s: %v", f.Cert, f.Key, err)}
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
