// Package guard runs what users gave, which may panic where nobody else could recover:
// in goroutines of this module's own.
package guard

import (
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// PanicError is a panic in a function of the user's.
type PanicError struct {
	What  string // panicked
	Value string
	Stack []byte
}

func (e *PanicError) Error() string { return e.What + " panicked: " + e.Value }

// Log logs the panic.
func (e *PanicError) Log(log *zap.Logger, fields ...zap.Field) {
	log.Error(e.What+" panicked", append(fields, zap.String("panic", e.Value), zap.ByteString("stack", e.Stack))...)
}

// Call runs f, and returns its panic; nil if there was none. What names f.
func Call(what string, f func()) (p *PanicError) {
	defer func() {
		if r := recover(); r != nil {
			p = &PanicError{what, fmt.Sprint(r), debug.Stack()}
		}
	}()
	f()
	return nil
}

// Observe runs f, whose panic is logged and nobody else's trouble.
func Observe(log *zap.Logger, what string, f func()) {
	if p := Call(what, f); p != nil {
		p.Log(log)
	}
}
