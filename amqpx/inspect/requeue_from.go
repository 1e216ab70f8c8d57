package inspect

import (
	"context"
	"fmt"
	"iter"
)

// savedSource is RequeueOptions.From. What stays is there all the same.
type savedSource struct {
	list   iter.Seq2[SavedMessage, error]
	prefix string

	next func() (SavedMessage, error, bool)
	stop func()
	read int // messages, in this pass
}

func newSavedSource(list iter.Seq2[SavedMessage, error], prefix string) *savedSource {
	return &savedSource{list: list, prefix: prefix, stop: func() {}}
}

// begin reads all messages once, to find every mistake before anything is sent.
func (s *savedSource) begin(ctx context.Context) (total int, err error) {
	for _, err := range s.list {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return 0, fmt.Errorf("nothing was sent: %w", err)
		}
		total++
	}
	s.next, s.stop = iter.Pull2(s.list)
	return total, nil
}

func (s *savedSource) take(ctx context.Context, n int) (list []*letter, err error) {
	for len(list) < n {
		if err := ctx.Err(); err != nil {
			return list, err
		}
		m, err, ok := s.next()
		if err != nil || !ok {
			return list, err
		}
		s.read++
		l := &letter{raw: m.Message, line: m.Line, DeadLetter: ReadDeadLetter(m.Message, m.Queue, s.prefix)}
		if l.line == 0 {
			l.line = s.read
		}
		list = append(list, l)
	}
	return list, nil
}

func (s *savedSource) keep(*letter) error          { return nil }
func (s *savedSource) acknowledge([]*letter) error { return nil }

func (s *savedSource) end([]*letter) error {
	s.stop()
	return nil
}
