// Package sparse logs a persistent problem without flooding the log.
package sparse

import (
	"errors"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// interval is how often a persistent problem is logged.
const interval = time.Minute

// Log logs a problem when it begins or changes, and after that once a minute with the number of lines that were
// suppressed. The zero value is ready to use.
type Log struct {
	mu   sync.Mutex
	kind string
	next time.Time
	left int
}

// Warn logs a line or counts it as suppressed. A different kind is a different problem, which is logged immediately.
func (s *Log) Warn(log *zap.Logger, kind, msg string, fields ...zap.Field) {
	s.Log(log, zap.WarnLevel, kind, msg, fields...)
}

// Log works like Warn, but logs at the given level.
func (s *Log) Log(log *zap.Logger, level zapcore.Level, kind, msg string, fields ...zap.Field) {
	s.mu.Lock()
	now := time.Now()
	if kind == s.kind && now.Before(s.next) {
		s.left++
		s.mu.Unlock()
		return
	}
	left := s.left
	s.kind, s.next, s.left = kind, now.Add(interval), 0
	s.mu.Unlock()
	if left > 0 {
		fields = append(fields, zap.Int("left_out", left))
	}
	log.Log(level, msg, fields...)
}

// Kind returns a string that identifies the kind of an error: the AMQP reply code, or an empty string for other errors.
// The error's text cannot identify the kind, because it may contain ports and ids.
func Kind(err error) string {
	if ae, ok := errors.AsType[*amqp.Error](err); ok {
		return strconv.Itoa(ae.Code)
	}
	return ""
}
