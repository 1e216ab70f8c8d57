package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
)

// load reads the files; nil when nothing is set. A problem names the setting.
func (t TLS) load() (*tls.Config, *Problem) {
	if t == (TLS{}) {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, &Problem{Path: "broker.tls.ca", Message: "cannot read " + t.CA + ": " + reason(err)}
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &Problem{Path: "broker.tls.ca", Message: t.CA + " has no certificate in PEM form"}
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, &Problem{Path: "broker.tls.cert", Message: "client certificate " + t.Cert + " with key " + t.Key + ": " + reason(err)}
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// reason is an error's text without the path, which the problem names already.
func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}
