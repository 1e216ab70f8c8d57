package config

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"strings"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/tlsfiles"
)

// reloading reads the files, and returns a function that reads them again at each
// handshake; nil when nothing is set. A problem names the setting.
func (t TLS) reloading(log *zap.Logger) (func() *tls.Config, *Problem) {
	if t == (TLS{}) {
		return nil, nil
	}
	get, err := tlsfiles.Files(t).Load(log)
	if fe, ok := errors.AsType[*tlsfiles.Error](err); ok {
		return nil, &Problem{Path: "broker.tls." + strings.ToLower(fe.Field), Message: fe.Text}
	}
	return get, nil
}

// reason is an error's text without the path, which the problem names already.
func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}
