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

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/status"
	"github.com/rabbitdelay/rabbitdelay/internal/shown"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// view is the data of every template: the data of the page, and what the layout needs.
type view struct {
	Page  string // the name of the template
	Title string
	Data  any

	Console   string // the console's name, from Options.Title
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
	Language  string            // the lang attribute
	Texts     map[string]string // the texts of console.js
	Other     otherLanguage     // the language to switch to
	LiveHref  string            // the address of the stream that updates the page
	Still     bool              // the page shows the note that nothing updates it
	Download  *download         // download of the list on the page
	Root      string            // leads from the page's address to the console, such as ../ for a nested address

	r *request
}

// otherLanguage is the language that a page offers as the alternative.
type otherLanguage struct{ Tag, Name string }

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

// stillPages lists the pages that show a note if nothing updates them. Forms do not need that note.
var stillPages = []string{"audit", "dead-errors", "dead-queue", "recurring-task", "task", "task-errors", "trace"}

func (p *Pages) view(r *request, a answer) view {
	v := view{
		Page: a.name, Title: a.title, Data: a.data, Console: p.o.Title, Color: p.o.Color, Who: r.who, Operator: r.who.Role.May(service.RoleOperator),
		TokenName: service.FormTokenField, Prefs: r.prefs, Zone: r.prefs.zone.String(), Here: here(r), At: r.stamp(r.now), Asset: assetVersion(), TraceURL: p.o.TraceURL,
		Language: r.lang.tag, Texts: r.lang.forScript(), Other: otherLanguage{chinese.tag, "中文"}, LiveHref: a.live, Still: a.live == "" && slices.Contains(stillPages, a.name),
		Download: a.download, Root: rootOf(r.URL.Path), r: r,
	}
	if r.lang == chinese {
		v.Other = otherLanguage{english.tag, "English"}
	}
	for _, s := range sections {
		item := navItem{Name: r.lang.text(s.name), Href: v.Root + s.href}
		for _, name := range s.pages {
			item.Current = item.Current || name == a.name
		}
		v.Nav = append(v.Nav, item)
	}
	return v
}

// rootOf returns the relative address of the console from a page at this path. It is empty for all pages, because they
// are one level deep. Only nested paths, which have no page, need "../".
func rootOf(at string) string {
	return strings.Repeat("../", strings.Count(strings.TrimPrefix(at, "/"), "/"))
}

// here returns the address of the current page, to which the layout's form returns.
func here(r *request) string {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if r.Method == http.MethodPost || name == "preferences" || strings.Contains(name, "/") {
		return "./"
	}
	return withQuery(name, r.URL.Query())
}

func (p *Pages) render(r *request, a answer) ([]byte, error) {
	t, ok := r.lang.pages()[a.name]
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
	err := r.lang.pages()[a.name].ExecuteTemplate(&b, name, p.view(r, a))
	return b.Bytes(), err
}

// pages returns the templates of the pages by name. Each includes the shared layout and parts.
func (l *language) pages() map[string]*template.Template {
	l.once.Do(func() {
		shared := template.Must(template.New("").Funcs(l.functions()).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
		names, err := fs.Glob(templateFiles, "templates/*.html")
		if err != nil {
			panic(err) // the pattern is valid
		}
		l.templates = map[string]*template.Template{}
		for _, file := range names {
			name := strings.TrimSuffix(path.Base(file), ".html")
			if name != "layout" && name != "parts" {
				l.templates[name] = template.Must(template.Must(shared.Clone()).ParseFS(templateFiles, file))
			}
		}
	})
	return l.templates
}

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

// functions returns the functions available in templates.
func (l *language) functions() template.FuncMap {
	return template.FuncMap{
		"t":          l.text,
		"say":        l.say,
		"plural":     func(n any, one, many string, args ...any) string { return l.plural(toInt(n), one, many, args...) },
		"count":      func(n any) string { return shown.Number(toInt(n)) },
		"known":      l.known,
		"orUnknown":  l.orUnknown,
		"duration":   formatAny,
		"shown":      shown.Line,
		"timetable":  taskview.Timetable,
		"properties": func() []taskview.Property { return taskview.Properties },
		"oneline":    func(s string) string { return shown.Line(shown.OneLine(s)) },
		"json":       func(v any) (string, error) { b, err := json.Marshal(v); return string(b), err },
		"middle":     middle,
		"shorten":    func(n int, s string) string { return shown.Line(shown.Shorten(s, n)) },
		"brief":      func(n int, s string) string { return shown.Line(shown.Shorten(shown.OneLine(s), n)) },
		"link":       link,
		"statusOf":   func(s schedule.Status) string { return string(s) },
		"sentence":   l.sentence,
		"lines":      func(s string) []string { return strings.Split(strings.TrimRight(s, "\n"), "\n") },
		"join":       strings.Join,
		"stamp":      func(v view, t time.Time) stamp { return v.r.stamp(t) },
		"when":       func(v view, t time.Time) template.HTML { return l.when(v.r.stamp(t)) },
		"instants":   func(v view, s string) template.HTML { return v.r.instants(s) },
		"dict":       dict,
		"body":       showBody,
		"action":     l.action,
		"bdi":        func(s string) template.HTML { return isolated(shown.Line(s)) },
		"bold":       func(s string) template.HTML { return template.HTML("<b>" + template.HTMLEscapeString(s) + "</b>") }, //nolint:gosec // it is escaped
		"escaped":    func(id string) string { return escaped([]string{id}) },
		"traceLink":  shown.TraceLink,
	}
}

// say returns a text as HTML. Arguments that are HTML, such as the results of when and bdi, are inserted unchanged, and
// other arguments are escaped.
func (l *language) say(text string, args ...any) template.HTML {
	for i, arg := range args {
		if _, element := arg.(template.HTML); !element {
			args[i] = template.HTMLEscapeString(fmt.Sprint(arg))
		}
	}
	return template.HTML(fmt.Sprintf(template.HTMLEscapeString(l.text(text)), args...)) //nolint:gosec // its parts are escaped
}

// isolated returns a bdi element, which keeps text from another source from changing the direction of the text around
// it.
func isolated(s string) template.HTML {
	return template.HTML("<bdi>" + template.HTMLEscapeString(s) + "</bdi>") //nolint:gosec // it is escaped
}

// when returns the elements for a time, which console.js converts to the browser's time zone.
func (l *language) when(s stamp) template.HTML {
	if s.Zero {
		return template.HTML(`<span class="none">` + template.HTMLEscapeString(l.text("none")) + `</span>`) //nolint:gosec // it is escaped
	}
	return template.HTML(`<span class="when">` + string(s.Element()) + ` <span class="until" data-until="` + s.ISO + `">` + template.HTMLEscapeString(s.Until) + `</span></span>`) //nolint:gosec // it is escaped
}

// Element returns the time element of a stamp.
func (s stamp) Element() template.HTML {
	return template.HTML(`<time datetime="` + s.ISO + `" title="` + s.ISO + `">` + template.HTMLEscapeString(s.Text) + `</time>`) //nolint:gosec // it is escaped
}

// action describes the action of an audit entry in words.
func (l *language) action(name string) string {
	return l.text(strings.ReplaceAll(strings.ReplaceAll(name, ".", " "), "-", " "))
}

// middle shortens an id to n characters by leaving out its middle, because ids often differ only at their end.
func middle(n int, s string) string {
	s = shown.Line(s)
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	tail := (n - 1) / 2
	return string(r[:n-1-tail]) + "…" + string(r[len(r)-tail:])
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

// bodyView is a body as a page shows it.
type bodyView struct {
	Size   int
	Kind   string // JSON, text or binary
	Text   string
	Base64 string // the shown part of a binary body, in base64
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

// unprintable reports whether a character cannot be shown as it is, such as a control or text direction character.
func unprintable(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune("\n\r\t", r) }
