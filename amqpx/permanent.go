package amqpx

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/rabbitdelay/rabbitdelay/topology"
)

func isTLSError(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}

func isConflict(err error) bool {
	_, ok := errors.AsType[*topology.ConflictError](err)
	return ok
}
