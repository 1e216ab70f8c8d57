package rows

import (
	"encoding/json"
	"strings"
	"time"
)

// Filter chooses tasks. Its conditions are joined by and; the zero value chooses all.
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

	Sent bool // only what was sent in its present version

	// Of a bulk change:
	ToQueue bool  // leaves out tasks to an exchange
	Outside *Span // due before or after it
}

// Span is a range of instants in milliseconds, both inclusive.
type Span struct{ From, To int64 }

// Place is a task's place in the order of due instant and id.
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

// where writes the status out, so that the planner can use a partial index.
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

// likeHeader finds a header in the JSON as it is written here, or as programs write it
// that put a space after the colon.
func likeHeader(name, colon, value string) string {
	k, _ := json.Marshal(name)  //nolint:errchkjson // strings do not fail
	v, _ := json.Marshal(value) //nolint:errchkjson // strings do not fail
	return "%" + literally.Replace(string(k)+colon+string(v)) + "%"
}
