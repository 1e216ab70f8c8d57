// Package guard calls the user's functions in goroutines of this module, where the user's program could not recover
// from a panic.
package guard

import (
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// PanicError is a panic in one of the user's functions.
type PanicError struct {
	What  string // the function that panicked
	Value string
	Stack []byte
}

func (e *PanicError) Error() string { return e.What + " panicked: " + e.Value }

// Call runs f. If f panics, Call logs the panic with the given fields and returns it; otherwise it returns nil. The
// parameter what names f.
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

// Observe runs f, and only logs a panic.
func Observe(log *zap.Logger, what string, f func()) { _ = Call(log, what, f) }
