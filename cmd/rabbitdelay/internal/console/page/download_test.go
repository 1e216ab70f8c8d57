package page

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/deadletters"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// A download contains all rows of a list, and not only those on the current page. It applies the list's filter.
func TestDownloads(t *testing.T) {
	c := open(service.RoleViewer)
	for path, want := range map[string]int{
		"tasks-download?tag=tenant-7": 240, "tasks-download?tag=tenant-7&queue=mail": 60, "tasks-download?prefix=none": 0, "recurring-download?": 3,
		"task-errors-download?status=failed": 2, "dead-errors-download?queue=mail.dead": 3, "audit-download?": 5, "audit-download?target=heartbeat": 1,
	} {
		w := c.get(path + "&format=csv")
		rows, err := csv.NewReader(w.Body).ReadAll()
		if err != nil || len(rows) != want+1 {
			t.Errorf("%s: got %d CSV rows, want a header row and %d rows (error %v)", path, len(rows), want, err)
		}
		if got := w.Header().Get("Content-Disposition"); !strings.HasPrefix(got, `attachment; filename="`) || !strings.HasSuffix(got, `.csv"`) {
			t.Errorf(`%s: got Content-Disposition %s, want attachment; filename="….csv"`, path, got)
		}
		w = c.get(path + "&format=json")
		var objects []map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &objects); err != nil || len(objects) != want {
			t.Errorf("%s: got %d JSON objects, want %d (error %v)", path, len(objects), want, err)
		}
		for _, o := range objects {
			if len(o) != len(rows[0]) {
				t.Errorf("%s: got a JSON object with %d fields, want %d", path, len(o), len(rows[0]))
			}
		}
	}
	for _, path := range []string{"tasks", "task-errors", "recurring", "dead-errors?queue=mail.dead", "audit"} {
		if body := c.get(path).Body.String(); strings.Count(body, ` download>`) != 2 || !strings.Contains(body, "at most 100,000 rows") {
			t.Errorf("page %s: got %d download links, want 2 and the text \"at most 100,000 rows\":\n%s", path, strings.Count(body, ` download>`), body)
		}
	}
}

// The link to a download keeps the filter of the page.
func TestDownloadKeepsTheFilter(t *testing.T) {
	body := open(service.RoleViewer).get("tasks?queue=mail&status=failed&sort=ended").Body.String()
	if want := `href="tasks-download?format=csv&amp;queue=mail&amp;sort=ended&amp;status=failed"`; !strings.Contains(body, want) {
		t.Errorf("got the page\n%s\nwant the link %s", body, want)
	}
}

// In a CSV file, no text from other sources looks like a formula to a spreadsheet.
func TestDownloadHasNoFormulas(t *testing.T) {
	c := open(service.RoleOperator)
	for i, id := range []string{"=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1"} {
		c.tasks[id] = schedule.TaskRow{Task: schedule.Task{ID: id, Queue: "formulas", DeliverAt: noon, Tags: []string{id}}, LastError: id, Status: schedule.StatusPending, Version: int64(i)}
	}
	rows, err := csv.NewReader(c.get("tasks-download?format=csv&queue=formulas").Body).ReadAll()
	if err != nil || len(rows) != 8 {
		t.Fatalf("got %d rows (error %v), want 8", len(rows), err)
	}
	for _, row := range rows[1:] {
		for i, cell := range row {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r\n") {
				t.Errorf("column %s is %q, want no text that a spreadsheet would evaluate as a formula", rows[0][i], cell)
			}
		}
	}
	if body := c.get("tasks-download?format=json&queue=formulas").Body.String(); !strings.Contains(body, `"id":"=1+1"`) {
		t.Errorf("the JSON download: got\n%s\nwant \"id\":\"=1+1\" unchanged", body)
	}
}

// Like its page, a download contains no bodies and no header values. Only users who may see the page may download it.
func TestDownloadsHaveNoSecrets(t *testing.T) {
	for _, role := range []service.Role{service.RoleViewer, service.RoleOperator} {
		c := open(role)
		for _, path := range []string{"tasks-download", "task-errors-download", "recurring-download", "audit-download"} {
			for _, format := range []string{"csv", "json"} {
				body := c.get(path + "?format=" + format).Body.String()
				for _, private := range []string{"order: 42", `order\"`, `"order"`, "daily", "body", "headers"} {
					if strings.Contains(body, private) {
						t.Errorf("role %s: download %s contains %q, want neither bodies nor headers", role, path, private)
					}
				}
			}
		}
	}
	c := open(service.RoleViewer)
	c.who = service.Caller{}
	if w := c.get("tasks-download?format=csv"); w.Code != http.StatusForbidden {
		t.Errorf("without a login: got %d, want 403", w.Code)
	}
	c = open(service.RoleViewer)
	for path, want := range map[string]int{"tasks-download": 400, "tasks-download?format=xml": 400, "tasks-download?format=csv&qeue=x": 400, "tasks-download?format=csv&from=x": 400} {
		if w := c.get(path); w.Code != want || !strings.Contains(w.Body.String(), `aria-label="Pages"`) {
			t.Errorf("%s: got %d, want an error page with %d", path, w.Code, want)
		}
	}
}

// long is a service with more tasks than a download may contain. It fails at the page in fails, unless fails is 0.
type long struct {
	*fake

	pages, fails int
}

func (s *long) Count(context.Context, schedule.Filter, int64) (n int64, more bool, err error) {
	return maxDownload, true, nil
}

func (s *long) Tasks(_ context.Context, _ service.Identity, f schedule.Filter) (service.TaskPage, error) {
	if s.pages++; s.pages == s.fails {
		return service.TaskPage{}, errors.New("the database has gone")
	}
	page := service.TaskPage{}
	for i := range f.Limit {
		page.Tasks = append(page.Tasks, schedule.TaskRow{Task: schedule.Task{ID: fmt.Sprintf("%d-%d", s.pages, i), DeliverAt: noon}})
	}
	page.Next = f.CursorOf(page.Tasks[len(page.Tasks)-1])
	return page, nil
}

// A download of a list that is too long contains only the first rows up to the limit, and its file name says so.
func TestDownloadLimit(t *testing.T) {
	c := open(service.RoleViewer)
	s := &long{fake: c.fake}
	c.pages = New(s, Options{})
	w := c.get("tasks-download?format=csv")
	if n := strings.Count(w.Body.String(), "\n"); n != maxDownload+1 {
		t.Errorf("got %d lines, want %d", n, maxDownload+1)
	}
	if got := w.Header().Get("Content-Disposition"); got != `attachment; filename="tasks-first-100000.csv"` {
		t.Errorf(`got Content-Disposition %q, want "attachment; filename=\"tasks-first-100000.csv\""`, got)
	}
}

func (s *long) AuditLongerThan(_ context.Context, target string, n int) (bool, error) {
	return target == "" && n == maxDownload, nil
}

func (s *long) Audit(_ context.Context, _ service.Identity, _, before string, limit int) ([]service.Entry, error) {
	s.pages++
	list := make([]service.Entry, limit)
	for i := range list {
		list[i].ID = fmt.Sprintf("%s%d-%d", before[:min(len(before), 1)], s.pages, i)
	}
	return list, nil
}

func (s *long) TaskErrors(context.Context, service.Identity, schedule.Filter, taskview.ErrorGroupOptions) (taskview.ErrorGroups, error) {
	return taskview.ErrorGroups{Groups: make([]taskview.ErrorGroup, 7), Others: 3}, nil
}

func (s *long) ErrorGroups(_ context.Context, _ string, _ deadletters.GroupOrder, limit int) (deadletters.ErrorGroups, error) {
	return deadletters.ErrorGroups{Groups: make([]deadletters.ErrorGroup, limit), Others: 1}, nil
}

// The name of each file that does not contain all rows says so.
func TestDownloadsSayThatTheyAreCut(t *testing.T) {
	c := open(service.RoleViewer)
	for path, name := range map[string]string{
		"audit-download?": "audit-first-100000", "audit-download?target=x": "audit", "task-errors-download?": "task-errors-first-7", "dead-errors-download?queue=q": "dead-errors-first-1000",
	} {
		for _, format := range []string{"csv", "json"} {
			c.pages = New(&long{fake: c.fake}, Options{})
			w := c.get(path + "&format=" + format)
			if got := w.Header().Get("Content-Disposition"); got != fmt.Sprintf("attachment; filename=%q", name+"."+format) {
				t.Errorf("%s: got Content-Disposition %s, want the file name %s", path, got, name)
			}
		}
	}
}

// Excel reads a CSV file as UTF-8 only if it begins with a byte order mark. JSON must not have one.
func TestCSVIsReadableInExcel(t *testing.T) {
	c := open(service.RoleViewer)
	c.tasks["订单"] = schedule.TaskRow{Task: schedule.Task{ID: "订单", Queue: "中文", DeliverAt: noon}, Status: schedule.StatusPending}
	if body := c.get("tasks-download?format=csv&queue=中文").Body.String(); !strings.HasPrefix(body, "\xef\xbb\xbfid,") || !strings.Contains(body, "\n订单,中文,") {
		t.Errorf("the CSV download: got %q, want it to begin with %q and to contain %q", body, "\xef\xbb\xbfid,", "\n订单,中文,")
	}
	if body := c.get("tasks-download?format=json&queue=中文").Body.String(); !strings.HasPrefix(body, "[") {
		t.Errorf(`the JSON download: got %q, want it to begin with "["`, body)
	}
}

// A download that fails does not look like a complete file. If it fails before its first row, the response is an error
// page. If it fails later, the connection is aborted.
func TestDownloadThatFails(t *testing.T) {
	for fails, begun := range map[int]bool{1: false, 3: true} {
		c := open(service.RoleOperator)
		c.pages = New(&long{fake: c.fake, fails: fails}, Options{})
		aborted := func() (aborted bool) {
			defer func() {
				err, _ := recover().(error)
				aborted = errors.Is(err, http.ErrAbortHandler)
			}()
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/tasks-download?format=json", http.NoBody)
			c.pages.ServeHTTP(w, r.WithContext(service.WithCaller(r.Context(), c.who)))
			if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "the database has gone") {
				t.Errorf("got %d\n%s\nwant 503 and a body with \"the database has gone\"", w.Code, w.Body)
			}
			return false
		}()
		if aborted != begun {
			t.Errorf("a failure at page %d: aborted = %t, want %t", fails, aborted, begun)
		}
	}
}
