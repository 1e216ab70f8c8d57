package rows

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Filter selects the tasks that match all of its conditions. The zero value selects all tasks.
type Filter struct {
	Queue, Exchange     string
	Status              string
	DueFrom, DueTo      time.Time // DueFrom is inclusive, DueTo exclusive
	IDPrefix, Tag       string
	UniqueKey           string
	IDs                 []string // nil matches any id
	Header, HeaderValue string
	Error               string // last_error contains this text
	ErrorLike           string // last_error is similar to this text; see package alike

	Sent bool // only tasks that were sent in their current version

	// For bulk changes:
	ToQueue bool  // leaves out tasks that are sent to an exchange
	Outside *Span // only tasks that are due before or after this span
}

// maxIDs bounds Filter.IDs.
const maxIDs = 1000

// Check returns an error for an unknown status and for too many ids.
func (f Filter) Check() error {
	if f.Status != "" && !slices.Contains(Statuses, f.Status) {
		return fmt.Errorf("status is %q, expected one of %v", f.Status, Statuses)
	}
	if len(f.IDs) > maxIDs {
		return fmt.Errorf("%d ids, expected at most %d", len(f.IDs), maxIDs)
	}
	return nil
}

// Span is a range of times in milliseconds, both inclusive.
type Span struct{ From, To int64 }

// Place is the position of a task in an order by time and id.
type Place struct {
	DeliverAt time.Time
	ID        string
}

// String returns the place as text for ParsePlace. The zero place is "".
func (p Place) String() string {
	if p.ID == "" {
		return ""
	}
	return strconv.FormatInt(Stored(p.DeliverAt), 10) + "/" + p.ID
}

// ParsePlace parses the text that Place.String returns.
func ParsePlace(s string) (Place, error) {
	if s == "" {
		return Place{}, nil
	}
	due, id, ok := strings.Cut(s, "/")
	ms, err := strconv.ParseInt(due, 10, 64)
	if !ok || err != nil || CheckID(id) != "" {
		return Place{}, fmt.Errorf("%q is not a cursor; expected one from earlier output, such as 1767225600000/order-42", s)
	}
	return Place{DeliverAt: time.UnixMilli(ms), ID: id}, nil
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
		// If the filter has no status, list all statuses, because in the indexes the status comes before the time.
		w.and("status IN ('" + strings.Join(Statuses, "', '") + "')")
	}
	if f.Queue != "" {
		w.and("queue = ? AND exchange = ''", f.Queue) // the first columns of the index
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
		// Use a range, which every index with a binary collation can answer. No valid id sorts after the last code
		// point.
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

// afterAll is the last code point. It sorts after all strings that begin with another one.
const afterAll = "\U0010FFFF"

// likeEscaper escapes a string for LIKE.
var likeEscaper = strings.NewReplacer("~", "~~", "%", "~%", "_", "~_")

// likeHeader returns a pattern for LIKE that finds a header in the JSON of the column headers. The parameter colon is
// the separator between name and value: this package writes only a colon, while other programs may write a space after
// it.
func likeHeader(name, colon, value string) string {
	k, _ := json.Marshal(name)  //nolint:errchkjson // strings do not fail
	v, _ := json.Marshal(value) //nolint:errchkjson // strings do not fail
	return "%" + likeEscaper.Replace(string(k)+colon+string(v)) + "%"
}
