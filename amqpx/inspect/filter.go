package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// DeadLetterFilter chooses dead letters. Its zero value chooses all, and each field
// that is set narrows the choice.
type DeadLetterFilter struct {
	Reasons      []string // one of them, each a constant such as ReasonRejected
	IDs          []string // one of them
	Destinations []string // one of them: a queue, or "exchange:routing key"
	Tasks        bool     // only those of tasks (package schedule)
	Error        string   // a part of the last error's text
	ErrorLike    string   // an error, or an ErrorGroup's: those that are Alike
	// Header with HeaderValue, as text, among the application's headers.
	Header, HeaderValue string
	// OlderThan and NewerThan compare how long it has lain there, see
	// DeadLetter.Died; 0 does not. What does not tell is not chosen.
	OlderThan, NewerThan time.Duration
}

// deadReasons are those that a dead letter can have.
var deadReasons = []string{ReasonRejected, ReasonAttempts, ReasonDeliveries, ReasonUnreadable, ReasonParked, ReasonExpired, ReasonMaxLen, ReasonDeliveryLimit}

func unknownReason(reason string) bool { return !slices.Contains(deadReasons, reason) }

// Empty reports whether the filter chooses everything.
func (f *DeadLetterFilter) Empty() bool {
	return len(f.Reasons)+len(f.IDs)+len(f.Destinations) == 0 && !f.Tasks && f.Error == "" && f.ErrorLike == "" && f.Header == "" && f.OlderThan == 0 && f.NewerThan == 0
}

// Matches reports whether the filter chooses a dead letter at an instant.
func (f *DeadLetterFilter) Matches(l *DeadLetter, now time.Time) bool {
	among := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	if f.Tasks && l.Version == 0 || !among(f.Reasons, l.Reason) || !among(f.IDs, l.ID) || !among(f.Destinations, l.Destination.String()) || !strings.Contains(l.Error, f.Error) {
		return false
	}
	if f.ErrorLike != "" && Alike(l.Error) != Alike(f.ErrorLike) {
		return false
	}
	if v, ok := l.Headers[f.Header]; f.Header != "" && (!ok || headerText(v) != f.HeaderValue) {
		return false
	}
	if f.OlderThan == 0 && f.NewerThan == 0 {
		return true
	}
	age := now.Sub(l.Died)
	return !l.Died.IsZero() && age >= f.OlderThan && (f.NewerThan == 0 || age <= f.NewerThan)
}

func headerText(v any) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}
