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

// Call runs f, and returns its panic, which it logs with the fields; nil if there was none.
// what names f.
func Call(log *zap.Logger, what string, f func(), fields ...zap.Field) (p *PanicError) {
	defer func() {
		if r := recover(); r != nil {
			p = &PanicError{what, fmt.Sprint(r), debug.Stack()}
			log.Error(what+" panicked", append(fields, zap.String("panic", p.Value), zap.ByteString("stack", p.Stack))...)
		}
	}()
	f()
	return nil
}

// Observe runs f, whose panic is logged and nobody else's trouble.
func Observe(log *zap.Logger, what string, f func()) { _ = Call(log, what, f) }
