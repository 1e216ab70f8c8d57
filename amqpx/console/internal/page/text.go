package page

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitdelay/rabbitdelay/amqpx/schedule"
	"github.com/rabbitdelay/rabbitdelay/amqpx/shown"
	"github.com/rabbitdelay/rabbitdelay/amqpx/status"
	"github.com/rabbitdelay/rabbitdelay/topology"
)

// functions are for the templates.
var functions = template.FuncMap{
	"count":     func(n any) string { return shown.Number(toInt(n)) },
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

// dict passes several values to a template.
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

// stamp is an instant as a page shows it.
type stamp struct {
	Zero  bool
	ISO   string // exact, in UTC
	Text  string // in the reader's time zone
	Until string // from now
	Past  bool
}

func (r *request) stamp(t time.Time) stamp {
	if t.IsZero() {
		return stamp{Zero: true}
	}
	s := stamp{ISO: shown.Instant(t), Text: t.In(r.prefs.zone).Format("2006-01-02 15:04:05 MST"), Past: !t.After(r.now)}
	if !r.still {
		s.Until = shown.FromNow(t, r.now)
	}
	return s
}

var writtenInstant = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)

// instants returns a sentence with its instants in the reader's time zone.
func (r *request) instants(s string) string {
	return writtenInstant.ReplaceAllStringFunc(s, func(iso string) string {
		t, err := time.Parse(time.RFC3339, iso)
		if err != nil {
			return iso
		}
		return r.stamp(t).Text
	})
}

// Bodies that a page shows, and how much of them.
const (
	maxBodyText = 16 << 10
	maxBodyHex  = 1 << 10
)

// bodyView is a body as a page shows it.
type bodyView struct {
	Size   int
	Kind   string // JSON, text or binary
	Text   string
	Base64 string // of a binary one
	Cut    int    // how many bytes are not shown
}

func showBody(b []byte) bodyView {
	v := bodyView{Size: len(b), Kind: "text"}
	if utf8.Valid(b) && printableText(b) {
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

// printableText reports whether a text can be shown as it is, without control characters or changes
// of direction.
func printableText(b []byte) bool {
	return !slices.ContainsFunc([]rune(string(b)), func(r rune) bool {
		return !unicode.IsPrint(r) && !strings.ContainsRune("\n\r\t", r)
	})
}
