package clitest

import (
	"os"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// duration matches a duration in the program's format, such as 59m59.9s or 1d.
const duration = `\d[\d.]*(ns|µs|ms|s|m|h|d)[\d.hms]*`

// changing lists patterns of text that differs between runs, with their replacements in a session. Times before 2000
// and from 2090 on were written by the script itself and are kept.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\b20[0-8]\d-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?Z`), "TIME"},
	{regexp.MustCompile(`TIME( +\(?)(now|in ` + duration + `|a moment ago|` + duration + ` ago)`), "TIME${1}RELATIVE"},
	{regexp.MustCompile(`\b(1[6-9]|[23]\d)\d{11}\b`), "MILLIS"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`\b(in|within|came) ` + duration), "$1 DURATION"},
	{regexp.MustCompile(`\bin \d+\.\d+ s\b`), "in DURATION"},
	{regexp.MustCompile(`\b(a moment|` + duration + `) ago`), "DURATION ago"},
	{regexp.MustCompile(` +[+-]?\d+ ms +`), " N ms "},
	{regexp.MustCompile(`[+-]?\b\d+ ms\b`), "N ms"},
	{regexp.MustCompile(`\(\d+/s\)`), "(N/s)"},
	{regexp.MustCompile(`"(seconds|lateness_ms)":[\d.e-]+`), `"$1":N`},
	{regexp.MustCompile(`127\.0\.0\.1:[3-6]\d{4}\b`), "127.0.0.1:PORT"},
}

// columns matches the spaces between the columns of a table, whose widths depend on the replaced text.
var columns = regexp.MustCompile(`(\S) {2,}`)

// scrub replaces text that differs between runs.
func scrub(ts *testscript.TestScript, text string) string {
	text = strings.ReplaceAll(text, ts.Getenv("WORK"), "$WORK")
	if s, _ := ts.Value(stateKey{}).(*state); s.broker != nil {
		text = s.broker.Scrub(text)
	}
	before := text
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.with)
	}
	if text != before {
		text = columns.ReplaceAllString(text, "$1  ")
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		text = regexp.MustCompile(`[\w.-]+@`+regexp.QuoteMeta(host)+`\b`).ReplaceAllString(text, "USER@HOST")
	}
	return text
}
