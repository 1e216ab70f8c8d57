package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rabbitdelay/rabbitdelay/internal/alike"
)

// Databases cannot decide which errors are similar, and they compare strings in different ways. A statement therefore
// only excludes rows that certainly do not match, and Matches checks the remaining rows.

// ByError reports whether the filter has a condition on the error, which only Matches can decide.
func (f Filter) ByError() bool { return f.Error+f.ErrorLike != "" }

// Matches reports whether a task with this error satisfies the filter's conditions on the error.
func (f Filter) Matches(lastError string) bool {
	if !strings.Contains(lastError, f.Error) {
		return false
	}
	return f.ErrorLike == "" || alike.Text(lastError) == alike.Text(f.ErrorLike)
}

// errorParts returns patterns for LIKE. Every error that the filter selects matches all of them.
func (f Filter) errorParts() (list []string) {
	if f.Error != "" {
		list = append(list, "%"+likeEscaper.Replace(f.Error)+"%")
	}
	if f.ErrorLike == "" {
		return list
	}
	var pieces []string
	for _, piece := range alike.Pieces(alike.Text(f.ErrorLike)) {
		pieces = append(pieces, likeEscaper.Replace(piece))
	}
	return append(list, "%"+strings.Join(append(pieces, ""), "%"))
}

// eachByError calls row with the queue, status and due time of every task that the filter selects, until row returns
// false.
func (c Conn) eachByError(ctx context.Context, f Filter, row func(queue, status string, due int64) bool) error {
	where := f.where()
	query := "SELECT queue, status, due_at, last_error FROM rabbitdelay_tasks" + where.String()
	err := c.each(ctx, query, where.args, func(scan scanner) error {
		var queue, status, text string
		var due int64
		err := scan(&queue, &status, cell{"due_at", &due, &RowError{}}, &text)
		if err == nil && f.Matches(text) && !row(queue, status, due) {
			err = errEnough
		}
		return err
	})
	if err == errEnough { //nolint:errorlint // the query returns this error unwrapped
		return nil
	}
	return err
}

var errEnough = errors.New("enough rows were read")

// Unsuccessful is a task as it is read in order to group tasks by their last error.
type Unsuccessful struct {
	ID, Queue, Exchange string
	At                  time.Time // when the task ended or, if it has not ended, when it is due
	LastError           string    // only its beginning, unless the filter compares the whole text
}

// failuresPage is the number of rows that Failures reads in one statement.
const failuresPage = 5000

// Failures calls row for the tasks with one status, newest first: by the time when they ended or, for tasks that have
// not ended, by the time when they are due. It reads at most the given number of rows, and skips those whose error does
// not match. It returns how many rows it has read, and whether there are more.
func (c Conn) Failures(ctx context.Context, f Filter, ended bool, most int, row func(Unsuccessful)) (read int, more bool, err error) {
	sort := Sort{Ended: ended, Last: true}
	columns := fmt.Sprintf("id, queue, exchange, due_at, finished_at, SUBSTR(last_error, 1, %d) AS last_error", alike.Most)
	if f.Error != "" {
		columns = "id, queue, exchange, due_at, finished_at, last_error"
	}
	l := Listing{Filter: f, Sort: sort}
	for {
		n, got := min(most-read+1, failuresPage), 0
		query, args := c.listQuery(l, columns, n)
		err := c.each(ctx, query, args, func(scan scanner) error {
			var x Unsuccessful
			var due int64
			var finished time.Time
			var text sql.NullString
			wrong := &RowError{}
			if err := scan(&x.ID, &x.Queue, &x.Exchange, cell{"due_at", &due, wrong}, cell{"finished_at", instant{&finished}, wrong}, &text); err != nil {
				return err
			}
			if got++; read+got > most {
				more = true
				return nil
			}
			x.At = time.UnixMilli(due)
			if ended {
				x.At = finished
			}
			l.After = Place{x.At, x.ID}
			x.LastError = text.String
			if f.Matches(x.LastError) {
				row(x)
			}
			return nil
		})
		read = min(read+got, most)
		if err != nil || more || got < n {
			return read, more, err
		}
	}
}
