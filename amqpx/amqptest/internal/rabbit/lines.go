package rabbit

import "slices"

// lines holds the ready messages of a queue in one line for each priority, plus one line for returned messages.
type lines struct {
	back   line   // returned messages, which quorum queues deliver first since 4.0
	levels []line // by priority, from the lowest
	level  func(*Message) int
	merged bool // whether only the first message of the whole queue can expire, rather than the first of each line
	// ratio is the number of messages that are delivered from a level before one of the next lower level; 0 means all.
	// gone counts the messages that were delivered since the last one of the lower level.
	ratio, gone int
	count       int
	bytes       int64
}

// line is a queue of messages ordered by seq.
type line struct {
	items []*Message
	head  int
}

func (l *line) len() int { return len(l.items) - l.head }

func (l *line) first() *Message {
	if l.len() == 0 {
		return nil
	}
	return l.items[l.head]
}

func (l *line) pop() *Message {
	m := l.items[l.head]
	l.items[l.head] = nil
	l.head++
	if l.head > 64 && l.head*2 > len(l.items) {
		l.items = append(l.items[:0], l.items[l.head:]...)
		l.head = 0
	}
	return m
}

// insert inserts a message at the position that its seq determines.
func (l *line) insert(m *Message) {
	i, _ := slices.BinarySearchFunc(l.items[l.head:], m, func(a, b *Message) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	l.items = slices.Insert(l.items, l.head+i, m)
}

// newLines returns empty lines, one for each priority that the queue's type and version support.
func (q *Queue) newLines() lines {
	n, level := q.maxPriority+1, func(m *Message) int { return min(int(m.Priority), q.maxPriority) }
	var ls lines
	switch {
	case q.quorum && q.vhost.is(4, 3, 0):
		n, level = 32, priority43
	case q.quorum && q.vhost.is(4, 0, 0):
		n, level = 2, func(m *Message) int { return min(int(m.Priority)/5, 1) }
		ls.ratio, ls.merged = 2, true
	case q.quorum:
		n, level = 1, func(*Message) int { return 0 }
	}
	ls.levels, ls.level = make([]line, n), level
	return ls
}

// priority43 returns a message's priority in a quorum queue since 4.3. A message without a priority has priority 4. An
// explicit priority of 0 would be lower, but it cannot be distinguished here, and Go's client does not send it.
func priority43(m *Message) int {
	if m.Priority == 0 {
		return 4
	}
	return min(int(m.Priority), 31)
}

func size(m *Message) int64 { return int64(len(m.Body)) }

func (ls *lines) put(m *Message) {
	l := &ls.levels[ls.level(m)]
	l.items = append(l.items, m)
	ls.count++
	ls.bytes += size(m)
}

// putBack puts back a returned message in its old position or, if first is true, at the end of the line of returned
// messages, which are delivered before all others.
func (ls *lines) putBack(m *Message, first bool) {
	if first {
		ls.back.items = append(ls.back.items, m)
	} else {
		ls.levels[ls.level(m)].insert(m)
	}
	ls.count++
	ls.bytes += size(m)
}

// nextLine returns the line that contains the next message, or nil if all lines are empty.
func (ls *lines) nextLine() *line {
	if ls.back.len() > 0 {
		return &ls.back
	}
	for i := len(ls.levels) - 1; i >= 0; i-- {
		if ls.levels[i].len() == 0 {
			continue
		}
		if ls.ratio > 0 && i > 0 && ls.gone >= ls.ratio && ls.levels[i-1].len() > 0 {
			return &ls.levels[i-1]
		}
		return &ls.levels[i]
	}
	return nil
}

// popFirst removes the first message of a line.
func (ls *lines) popFirst(l *line) *Message {
	m := l.pop()
	ls.count--
	ls.bytes -= size(m)
	if ls.ratio > 0 && l != &ls.back {
		if l == &ls.levels[0] {
			ls.gone = 0
		} else {
			ls.gone++
		}
	}
	return m
}

// heads calls f for each line whose first message may expire.
func (ls *lines) heads(f func(*line)) {
	if ls.merged {
		if l := ls.nextLine(); l != nil {
			f(l)
		}
		return
	}
	f(&ls.back)
	for i := len(ls.levels) - 1; i >= 0; i-- {
		f(&ls.levels[i])
	}
}

func (ls *lines) all() []*Message {
	out := slices.Clone(ls.back.items[ls.back.head:])
	for _, l := range slices.Backward(ls.levels) {
		out = append(out, l.items[l.head:]...)
	}
	return out
}
