package amqpx

import (
	"errors"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

// sparseInterval is how often a trouble that lasts is logged.
const sparseInterval = time.Minute

// sparse logs a problem when it begins or changes, then once a minute with the
// number of lines it suppressed. Its zero value is ready to use.
type sparse struct {
	mu   sync.Mutex
	kind string
	next time.Time
	left int
}

func (s *sparse) warn(log *zap.Logger, kind, msg string, fields ...zap.Field) {
	s.mu.Lock()
	now := time.Now()
	if kind == s.kind && now.Before(s.next) {
		s.left++
		s.mu.Unlock()
		return
	}
	left := s.left
	s.kind, s.next, s.left = kind, now.Add(sparseInterval), 0
	s.mu.Unlock()
	if left > 0 {
		fields = append(fields, zap.Int("left_out", left))
	}
	log.Warn(msg, fields...)
}

// kindOf tells one trouble from another: texts have ports and ids in them.
func kindOf(err error) string {
	if ae, ok := errors.AsType[*amqp.Error](err); ok {
		return strconv.Itoa(ae.Code)
	}
	return ""
}
