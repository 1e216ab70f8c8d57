// Package sparse logs a trouble that lasts without filling the log.
package sparse

import (
	"errors"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

// interval is how often a trouble that lasts is logged.
const interval = time.Minute

// Log logs a trouble when it begins or changes, then once a minute with the number of
// lines that it left out. The zero value is ready to use.
type Log struct {
	mu   sync.Mutex
	kind string
	next time.Time
	left int
}

// Warn logs a line, or counts it. Troubles of another kind are others.
func (s *Log) Warn(log *zap.Logger, kind, msg string, fields ...zap.Field) {
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
	log.Warn(msg, fields...)
}

// Kind returns what distinguishes an error from others, whose texts have ports and ids in
// them: the reply code of AMQP, or nothing.
func Kind(err error) string {
	if ae, ok := errors.AsType[*amqp.Error](err); ok {
		return strconv.Itoa(ae.Code)
	}
	return ""
}
