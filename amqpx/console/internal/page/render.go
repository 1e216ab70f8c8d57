package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/console/internal/service"
	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// view is the data of every template: the page's own data, and what the layout needs.
type view struct {
	Page  string // the name of the template
	Title string
	Data  any

	Console   string // Options.Title
	Color     string
	Who       service.Caller
	Operator  bool
	TokenName string
	Prefs     preferences
	Zone      string // the time zone of the times on the page
	Here      string // the address of the page, for returning to it
	Nav       []navItem
	At        stamp
	Asset     string // the version of the assets
	TraceURL  string

	r *request
}

type navItem struct {
	Name, Href string
	Current    bool
}

// sections lists the navigation entries, with the pages that belong to each of them.
var sections = []struct {
	name, href string
	pages      []string
}{
	{"Now", "./", []string{"now"}},
	{"Tasks", "tasks?status=pending", []string{"tasks", "task-errors", "task", "task-act", "task-new", "bulk"}},
	{"Recurring", "recurring", []string{"recurring", "recurring-task", "recurring-edit", "recurring-act"}},
	{"Dead letters", "dead", []string{"dead", "dead-queue", "dead-errors", "requeue", "discard"}},
	{"Layouts", "layouts", []string{"layouts", "retire"}},
	{"Audit", "audit", []string{"audit", "job", "job-act"}},
}

func (p *Pages) view(r *request, a answer) view {
	v := view{
		Page: a.name, Title: a.title, Data: a.data, Console: p.o.Title, Color: p.o.Color, Who: r.who, Operator: r.who.Role.May(service.RoleOperator),
		TokenName: service.FormTokenField, Prefs: r.prefs, Zone: r.prefs.zone.String(), Here: here(r), At: r.stamp(r.now), Asset: assetVersion(), TraceURL: p.o.TraceURL, r: r,
	}
	for _, s := range sections {
		item := navItem{Name: s.name, Href: s.href}
		for _, name := range s.pages {
			item.Current = item.Current || name == a.name
		}
		v.Nav = append(v.Nav, item)
	}
	return v
}

// here returns the address to which a form in the layout returns.
func here(r *request) string {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if r.Method == http.MethodPost || name == "preferences" {
		return "./"
	}
	return withQuery(name, r.URL.Query())
}

func (p *Pages) render(r *request, a answer) ([]byte, error) {
	t, ok := templates()[a.name]
	if !ok {
		return nil, fmt.Errorf("there is no template %q", a.name)
	}
	var b bytes.Buffer
	err := t.ExecuteTemplate(&b, "layout", p.view(r, a))
	return b.Bytes(), err
}

// part renders a single template of a page.
func (p *Pages) part(r *request, a answer, name string) ([]byte, error) {
	var b bytes.Buffer
	err := templates()[a.name].ExecuteTemplate(&b, name, p.view(r, a))
	return b.Bytes(), err
}

// templates has the templates of the pages by name. Each includes the shared layout and parts.
var templates = sync.OnceValue(func() map[string]*template.Template {
	shared := template.Must(template.New("").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err) // the pattern is valid
	}
	pages := map[string]*template.Template{}
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name != "layout" && name != "parts" {
			pages[name] = template.Must(template.Must(shared.Clone()).ParseFS(templateFiles, file))
		}
	}
	return pages
})

// assetVersion is part of the assets' addresses, so that browsers can cache the assets.
var assetVersion = sync.OnceValue(func() string {
	h := sha256.New()
	for _, name := range []string{"assets/console.css", "assets/console.js"} {
		b, err := assetFiles.ReadFile(name)
		if err != nil {
			panic(err) // the file is embedded
		}
		_, _ = h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
})

func serveAsset(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/") {
		http.NotFound(w, r)
		return
	}
	if r.URL.Query().Get("v") == assetVersion() {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, assetFiles, strings.TrimPrefix(path.Clean(r.URL.Path), "/")) //nolint:gosec // the files are embedded, and there are no others
}

// Query returns a parameter of the page's own address.
func (v view) Query(name string) string { return v.r.URL.Query().Get(name) }

// functions are the functions available in templates.
var functions = template.FuncMap{
	"count":     func(n any) string { return shown.Number(toInt(n)) },
	"known":     func(n int64, unknown bool) string { return shown.Known(n, unknown, shown.Number) },
	"plural":    func(n any, one, many string) string { return shown.Count(toInt(n), one, many) },
	"duration":  formatAny,
	"shown":     shown.Line,
	"shorten":   func(n int, s string) string { return shown.Line(shown.Shorten(s, n)) },
	"link":      link,
	"statusOf":  func(s schedule.Status) string { return string(s) },
	"sentence":  sentence,
	"lines":     func(s string) []string { return strings.Split(strings.TrimRight(s, "\n"), "\n") },
	"join":      strings.Join,
	"stamp":     func(v view, t time.Time) stamp { return v.r.stamp(t) },
	"instants":  func(v view, s string) string { return v.r.instants(s) },
	"dict":      dict,
	"body":      showBody,
	"action":    func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, ".", " "), "-", " ") },
	"escaped":   func(id string) string { return escaped([]string{id}) },
	"traceLink": shown.TraceLink,
}

// dict combines several values into a map for a template.
func dict(pairs ...any) map[string]any {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

func toInt(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case int64:
		return n
	case float64:
		return int64(n + 0.5)
	}
	return 0
}

func formatAny(d any) string {
	switch d := d.(type) {
	case time.Duration:
		return topology.FormatDuration(d)
	case status.Span:
		return topology.FormatDuration(time.Duration(d))
	}
	return ""
}

// Maximum number of bytes of a body that a page shows.
const (
	maxBodyText = 16 << 10
	maxBodyHex  = 1 << 10
)

// bodyView is a body in the form in which a page shows it.
type bodyView struct {
	Size   int
	Kind   string // JSON, text or binary
	Text   string
	Base64 string // of a binary body
	Cut    int    // the number of bytes that are not shown
}

func showBody(b []byte) bodyView {
	v := bodyView{Size: len(b), Kind: "text"}
	if utf8.Valid(b) && !slices.ContainsFunc([]rune(string(b)), unprintable) {
		if json.Valid(b) {
			v.Kind = "JSON"
		}
		if v.Cut = max(0, len(b)-maxBodyText); v.Cut > 0 {
			b = b[:maxBodyText]
		}
		v.Text = strings.ToValidUTF8(string(b), "")
		return v
	}
	v.Kind = "binary"
	if v.Cut = max(0, len(b)-maxBodyHex); v.Cut > 0 {
		b = b[:maxBodyHex]
	}
	v.Text, v.Base64 = hex.Dump(b), base64.StdEncoding.EncodeToString(b)
	return v
}

// unprintable reports whether a character cannot be shown as it is, such as control and text direction characters.
func unprintable(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\n\r\t", r) }
