package rows

import (
	"encoding/json"
	"strings"
	"time"
)

// Filter chooses tasks that match all of its conditions. The zero value chooses all tasks.
type Filter struct {
	Queue, Exchange     string
	Status              string
	DueFrom, DueTo      time.Time // inclusive, exclusive
	IDPrefix, Tag       string
	UniqueKey           string
	IDs                 []string // nil: any
	Header, HeaderValue string
	Error               string // last_error contains it
	ErrorLike           string // last_error is like it, see package alike

	Sent bool // only tasks that were sent in their current version

	// For bulk changes:
	ToQueue bool  // leaves out tasks to an exchange
	Outside *Span // only tasks that are due before or after it
}

// Span is a range of times in milliseconds, both inclusive.
type Span struct{ From, To int64 }

// Place is the position of a task in an order by time and id.
type Place struct {
	DeliverAt time.Time
	ID        string
}

// clause is a WHERE clause with its parameters.
type clause struct {
	conditions []string
	args       []any
}

func (w *clause) and(condition string, args ...any) {
	w.conditions = append(w.conditions, condition)
	w.args = append(w.args, args...)
}

func (w *clause) String() string {
	if len(w.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.conditions, " AND ")
}

// where returns the WHERE clause of the filter. The status is a literal in it, so that the planner can use a
// partial index.
func (f Filter) where() *clause {
	w := &clause{}
	switch {
	case f.Status != "":
		w.and("status = '" + f.Status + "'")
	case f.Queue != "" || f.Exchange != "" || !f.DueFrom.IsZero() || !f.DueTo.IsZero():
		// All there are, because the indexes have the status before the instant.
		w.and("status IN ('" + strings.Join(Statuses, "', '") + "')")
	}
	if f.Queue != "" {
		w.and("queue = ? AND exchange = ''", f.Queue) // as the index has it
	}
	if f.Exchange != "" {
		w.and("exchange = ? AND queue = ''", f.Exchange)
	}
	if f.Tag != "" {
		w.and("id IN (SELECT task_id FROM rabbitdelay_task_tags WHERE tag = ?)", f.Tag)
	}
	if f.UniqueKey != "" {
		w.and("unique_key = ?", f.UniqueKey)
	}
	if f.Header != "" {
		w.and("(headers LIKE ? ESCAPE '~' OR headers LIKE ? ESCAPE '~')", likeHeader(f.Header, ":", f.HeaderValue), likeHeader(f.Header, ": ", f.HeaderValue))
	}
	for _, part := range f.errorParts() {
		w.and("last_error LIKE ? ESCAPE '~'", part)
	}
	if !f.DueFrom.IsZero() {
		w.and("due_at >= ?", Stored(f.DueFrom))
	}
	if !f.DueTo.IsZero() {
		w.and("due_at < ?", Stored(f.DueTo))
	}
	if len(f.IDs) > 0 {
		w.and("id IN ("+marks(len(f.IDs))+")", anys(f.IDs)...)
	}
	if f.IDPrefix != "" {
		// A range, which every index of a binary collation can answer; no valid id sorts
		// after the last code point.
		w.and("id >= ?", f.IDPrefix)
		w.and("id < ?", f.IDPrefix+afterAll)
	}
	if f.Sent {
		w.and("resend_at IS NOT NULL")
	}
	if f.ToQueue {
		w.and("exchange = ''")
	}
	if f.Outside != nil {
		w.and("(due_at < ? OR due_at > ?)", f.Outside.From, f.Outside.To)
	}
	return w
}

// afterAll sorts after every text of valid code points.
const afterAll = "\U0010FFFF"

// literally escapes a text for LIKE.
var literally = strings.NewReplacer("~", "~~", "%", "~%", "_", "~_")

// likeHeader returns a pattern that finds a header in JSON as this package writes it, or with another separator,
// for programs that write a space after the colon.
func likeHeader(name, colon, value string) string {
	k, _ := json.Marshal(name)  //nolint:errchkjson // strings do not fail
	v, _ := json.Marshal(value) //nolint:errchkjson // strings do not fail
	return "%" + literally.Replace(string(k)+colon+string(v)) + "%"
}
