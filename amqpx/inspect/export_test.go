package inspect

import "time"

// Matches is matches, for the tests of its cases.
func (f *DeadLetterFilter) Matches(l *DeadLetter, now time.Time) bool { return f.matches(l, now) }
