// Package guard calls the application's functions in places where a panic or runtime.Goexit would affect more than the
// function itself.
package guard

import (
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"
)

// PanicError reports that one of the application's functions panicked or ended its goroutine.
type PanicError struct {
	What  string // names the function
	Ended bool   // the function did not panic, but ended its goroutine
	Value string // the value of the panic
	Stack []byte
}

// Goexit is the text for a function that ended its goroutine.
const Goexit = "ended its goroutine (runtime.Goexit, which t.FailNow calls)"

func (e *PanicError) Error() string {
	if e.Ended {
		return e.What + " " + Goexit
	}
	return e.What + " panicked: " + e.Value
}

// Call runs f in a separate goroutine and waits for it, so that runtime.Goexit in f ends only f. If f panics or ends
// its goroutine, Call logs a *PanicError with the given fields and returns it. Otherwise it returns nil. The parameter
// what names f.
func Call(log *zap.Logger, what string, f func(), fields ...zap.Field) *PanicError {
	ended := make(chan *PanicError, 1)
	go func() {
		p := &PanicError{What: what, Ended: true}
		defer func() {
			if p != nil && p.Ended {
				log.Error(p.Error(), fields...)
			}
			ended <- p
		}()
		p = Recover(log, what, f, fields...)
	}()
	return <-ended
}

// Recover is like Call, but runs f in the caller's goroutine. If f calls runtime.Goexit, that goroutine ends, and only
// the caller's deferred functions run.
func Recover(log *zap.Logger, what string, f func(), fields ...zap.Field) (p *PanicError) {
	defer func() {
		if r := recover(); r != nil {
			p = &PanicError{What: what, Value: fmt.Sprint(r), Stack: debug.Stack()}
			log.Error(what+" panicked", append(fields, zap.String("panic", p.Value), zap.ByteString("stack", p.Stack))...)
		}
	}()
	f()
	return nil
}

// Observe is like Call, but returns nothing.
func Observe(log *zap.Logger, what string, f func()) { _ = Call(log, what, f) }
