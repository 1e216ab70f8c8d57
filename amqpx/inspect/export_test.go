package inspect

import "time"

// Matches exports matches for tests.
func (f *DeadLetterFilter) Matches(l *DeadLetter, now time.Time) bool { return f.matches(l, now) }
