package page

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// maxDownload is the maximum number of rows of a download. If a list is longer, the name of the file says how many rows
// it has.
const maxDownload = 100_000

// download contains the addresses from which a list can be downloaded, one for each format.
type download struct {
	CSV, JSON string
	Limit     int
}

// downloadOf returns the addresses of the list at path with the given fields.
func downloadOf(path string, fields url.Values) *download {
	in := func(format string) string {
		v := url.Values{"format": {format}}
		maps.Copy(v, fields)
		return withQuery(path+"-download", v)
	}
	return &download{CSV: in("csv"), JSON: in("json"), Limit: maxDownload}
}

// nonEmpty returns the form values with this one field, or nil if value is empty.
func nonEmpty(name, value string) url.Values {
	if value == "" {
		return nil
	}
	return url.Values{name: {value}}
}

// table is a list to download. It has the same columns as the list on the page. Bodies and headers are never
// downloaded.
type table struct {
	columns []string
	first   int // the number of rows in the file if the list is longer; 0 if the file contains all rows
	// rows calls the function each for every row and stops at the first error. The values of a row are strings,
	// numbers, times and lists of strings.
	rows func(each func(...any) error) error
}

// downloads returns a handler that sends all rows of a list as a file. It sends rows while it reads others, so that a
// long list needs little memory.
func (p *Pages) downloads(name string, list func(*request) (table, error), known ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := p.request(w, r)
		if err == nil && !q.who.Role.May(service.RoleViewer) {
			err = service.ErrForbidden
		}
		if err == nil {
			err = unknownField(q, append(known, "format"))
		}
		format := q.get("format")
		if err == nil && format != "csv" && format != "json" {
			err = fieldError("format", "%q; expected csv or json", format)
		}
		var t table
		if err == nil {
			t, err = list(q)
		}
		if err != nil {
			p.write(w, q, p.problem(q, err))
			return
		}
		out := &rowWriter{w: w, name: name, format: format, table: t}
		if err = t.rows(out.row); err == nil {
			err = out.close()
		}
		switch {
		case err == nil:
		case out.begun:
			p.o.Logger.Warn("a download failed after it had started", zap.String("list", name), zap.Error(err))
			panic(http.ErrAbortHandler) // so that the browser reports the file as incomplete
		default:
			p.write(w, q, p.problem(q, err))
		}
	}
}

// byteOrderMark is the beginning of a CSV file. Without it, Excel reads the file in the computer's regional encoding,
// and garbles all text that is not ASCII.
const byteOrderMark = "\ufeff"

// rowWriter streams rows as CSV or JSON. It sends the response's headers with the first row, so that an error before
// the first row can be answered with an error page.
type rowWriter struct {
	w      http.ResponseWriter
	name   string
	format string
	table  table
	begun  bool
	rows   int
	csv    *csv.Writer
}

// begin writes the response headers and the beginning of the file: the column names in CSV, a bracket in JSON.
func (o *rowWriter) begin() error {
	o.begun = true
	name := o.name
	if o.table.first > 0 {
		name = fmt.Sprintf("%s-first-%d", name, o.table.first)
	}
	h := o.w.Header()
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name+"."+o.format))
	h.Set("Cache-Control", "no-store")
	if o.format == "json" {
		h.Set("Content-Type", "application/json")
		_, err := io.WriteString(o.w, "[")
		return err
	}
	h.Set("Content-Type", "text/csv; charset=utf-8")
	if _, err := io.WriteString(o.w, byteOrderMark); err != nil {
		return err
	}
	o.csv = csv.NewWriter(o.w)
	return o.csv.Write(o.table.columns)
}

// row writes one row, preceded by the headers and the beginning of the file if it is the first.
func (o *rowWriter) row(values ...any) error {
	const slow = 30 * time.Second // a client may take this long to accept 1000 rows
	if o.rows%1000 == 0 {
		if err := supported(http.NewResponseController(o.w).SetWriteDeadline(time.Now().Add(slow))); err != nil {
			return err
		}
	}
	if !o.begun {
		if err := o.begin(); err != nil {
			return err
		}
	}
	o.rows++
	if o.csv != nil {
		cells := make([]string, len(values))
		for i, v := range values {
			cells[i] = csvCell(v)
		}
		return o.csv.Write(cells)
	}
	row, err := jsonRow(o.table.columns, values)
	if err != nil {
		return err
	}
	between := ",\n"
	if o.rows == 1 {
		between = "\n"
	}
	_, err = io.WriteString(o.w, between+row)
	return err
}

// close writes the end of the file, and its beginning if there were no rows.
func (o *rowWriter) close() error {
	if !o.begun {
		if err := o.begin(); err != nil {
			return err
		}
	}
	if o.csv != nil {
		o.csv.Flush()
		return o.csv.Error()
	}
	_, err := io.WriteString(o.w, "\n]\n")
	return err
}

// csvCell formats a value for CSV. A spreadsheet evaluates text that begins like a formula, so csvCell puts an
// apostrophe in front of such text, which marks it as plain text.
func csvCell(v any) string {
	var s string
	switch v := v.(type) {
	case time.Time:
		if !v.IsZero() {
			s = shown.Instant(v)
		}
		return s
	case []string:
		s = strings.Join(v, "\n")
	case string:
		s = v
	default:
		return fmt.Sprint(v)
	}
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}

// jsonRow formats a row as a JSON object with the columns in their order. Unknown times are null.
func jsonRow(columns []string, values []any) (string, error) {
	var b strings.Builder
	for i, v := range values {
		switch x := v.(type) {
		case time.Time:
			if v = nil; !x.IsZero() {
				v = shown.Instant(x)
			}
		case []string:
			if x == nil {
				v = []string{}
			}
		}
		value, err := json.Marshal(v)
		if err != nil {
			return "", err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + columns[i] + `":`)
		b.Write(value)
	}
	return "{" + b.String() + "}", nil
}

func (p *Pages) tasksTable(r *request) (table, error) {
	f, err := readFilter(r)
	if err == nil {
		f.Sort, err = readSort(r, f.Status)
	}
	if err != nil {
		return table{}, err
	}
	count := f
	count.Sort = ""
	_, more, err := p.svc.Count(r.Context(), count, maxDownload)
	if err != nil {
		return table{}, err
	}
	rows := func(each func(...any) error) error {
		left := maxDownload
		for left > 0 {
			f.Limit = min(left, service.MaxPage)
			page, err := p.svc.Tasks(r.Context(), r.who.Identity, f)
			if err != nil {
				return err
			}
			for _, t := range page.Tasks {
				row := make([]any, len(taskColumns))
				for i, c := range taskColumns {
					row[i] = c.of(t)
				}
				if err := each(row...); err != nil {
					return err
				}
			}
			left -= len(page.Tasks)
			if page.Next == "" {
				return nil
			}
			f.After = page.Next
		}
		return nil
	}
	columns := make([]string, len(taskColumns))
	for i, c := range taskColumns {
		columns[i] = c.name
	}
	return table{first: firstOf(more, maxDownload), rows: rows, columns: columns}, nil
}

// taskColumns are the columns of a downloaded list of tasks.
var taskColumns = []struct {
	name string
	of   func(t schedule.TaskRow) any
}{
	{"id", func(t schedule.TaskRow) any { return t.ID }},
	{"queue", func(t schedule.TaskRow) any { return t.Queue }},
	{"exchange", func(t schedule.TaskRow) any { return t.Exchange }},
	{"routing_key", func(t schedule.TaskRow) any { return t.RoutingKey }},
	{"status", func(t schedule.TaskRow) any { return string(t.Status) }},
	{"due", func(t schedule.TaskRow) any { return t.DueSince() }},
	{"version", func(t schedule.TaskRow) any { return t.Version }},
	{"attempts", func(t schedule.TaskRow) any { return t.Attempts }},
	{"last_error", func(t schedule.TaskRow) any { return t.LastError }},
	{"sends", func(t schedule.TaskRow) any { return t.Sends }},
	{"sent", func(t schedule.TaskRow) any { return t.SentAt }},
	{"created", func(t schedule.TaskRow) any { return t.CreatedAt }},
	{"updated", func(t schedule.TaskRow) any { return t.UpdatedAt }},
	{"finished", func(t schedule.TaskRow) any { return t.FinishedAt }},
	{"unique_key", func(t schedule.TaskRow) any { return t.UniqueKey }},
	{"tags", func(t schedule.TaskRow) any { return t.Tags }},
}

// firstOf returns the number of rows to mention in the name of a file, or 0 if the file contains the whole list.
func firstOf(more bool, rows int) int {
	if more {
		return rows
	}
	return 0
}

func (p *Pages) taskErrorsTable(r *request) (table, error) {
	a, err := p.taskErrorsUpTo(r, taskview.MaxGroups)
	if err != nil {
		return table{}, err
	}
	d, _ := a.data.(taskErrorsData)
	more := d.Others > 0 || d.More
	return table{first: firstOf(more, len(d.Groups)), columns: []string{"tasks", "error_like", "queue", "exchange", "first", "last", "example_id", "example"}, rows: func(each func(...any) error) error {
		for _, g := range d.Groups {
			if err := each(g.Tasks, g.ErrorLike, g.Queue, g.Exchange, g.First, g.Last, g.ExampleID, g.Example); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

func (p *Pages) deadErrorsTable(r *request) (table, error) {
	a, err := p.deadErrorsUpTo(r, deadletters.MaxGroups)
	if err != nil {
		return table{}, err
	}
	d, _ := a.data.(deadErrorsData)
	more := d.Others > 0 || d.AtLeast
	return table{first: firstOf(more, len(d.Groups)), columns: []string{"messages", "error_like", "reason", "destination", "first", "last", "example_id", "example"}, rows: func(each func(...any) error) error {
		for _, g := range d.Groups {
			if err := each(g.Messages, g.ErrorLike, g.Reason, g.Destination, timeOr(g.First), timeOr(g.Last), g.ExampleID, g.Example); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

// timeOr returns *t, or the zero time if t is nil.
func timeOr(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

func (p *Pages) recurringTable(r *request) (table, error) {
	a, err := p.recurring(r)
	if err != nil {
		return table{}, err
	}
	d, _ := a.data.(recurringData)
	return table{columns: []string{"name", "cron", "time_zone", "every_seconds", "queue", "exchange", "routing_key", "state", "next", "last_id", "last_status", "last_finished", "last_error", "updated"}, rows: func(each func(...any) error) error {
		for _, t := range d.Tasks {
			var last schedule.TaskRow
			if t.Last != nil {
				last = *t.Last
			}
			x := t.Recurring
			if err := each(x.Name, x.Cron, x.TimeZone, x.Every.Seconds(), x.Task.Queue, x.Task.Exchange, x.Task.RoutingKey, string(t.State), t.next(), last.ID, string(last.Status), last.FinishedAt,
				strings.TrimPrefix(x.LastError+"\n"+last.LastError, "\n"), x.UpdatedAt); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

func (p *Pages) auditTable(r *request) (table, error) {
	target := r.form.Get("target")
	more, err := p.svc.AuditLongerThan(r.Context(), target, maxDownload)
	if err != nil {
		return table{}, err
	}
	rows := func(each func(...any) error) error {
		before := ""
		for left := maxDownload; left > 0; {
			list, err := p.svc.Audit(r.Context(), r.who.Identity, target, before, min(left, service.MaxEntries))
			if err != nil {
				return err
			}
			for _, e := range list {
				if err := each(e.ID, e.At, e.Who, e.Action, e.Target, e.Detail, e.Result, e.Error); err != nil {
					return err
				}
			}
			left -= len(list)
			if len(list) < service.MaxEntries || list[len(list)-1].ID == before {
				return nil
			}
			before = list[len(list)-1].ID
		}
		return nil
	}
	return table{first: firstOf(more, maxDownload), columns: []string{"id", "at", "user", "action", "target", "detail", "result", "error"}, rows: rows}, nil
}
