package pictures

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// Colors of both schemes. The names are CSS classes: "dim" is for notes, a to c mark what a picture compares.
const style = `<style>
:root{--ink:#1f2328;--dim:#59636e;--line:#8b949e;--soft:#d1d9e0;--box:#f6f8fa;--page:#fff;--a:#0969da;--b:#b35900;--c:#1a7f37;--bad:#cf222e}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9198a1;--line:#7d8590;--soft:#30363d;--box:#161b22;--page:#0d1117;--a:#58a6ff;--b:#f0883e;--c:#3fb950;--bad:#f85149}}
text{fill:var(--ink)} .page{fill:var(--page)} .box{fill:var(--box);stroke:var(--line)} .frame{fill:none;stroke:var(--line);stroke-dasharray:4 4} .wire{stroke:var(--line);fill:none;stroke-width:1.5} .grid{stroke:var(--soft);fill:none}
.dim{fill:var(--dim);font-size:12px} .h{font-weight:600} .mono{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px} .m{text-anchor:middle} .e{text-anchor:end}
text.a,.dot.a{fill:var(--a)} text.b,.dot.b{fill:var(--b)} text.c,.dot.c{fill:var(--c)} text.bad{fill:var(--bad)} .line{fill:none;stroke-width:2} .line.a{stroke:var(--a)} .line.b{stroke:var(--b)} .line.c{stroke:var(--c)} .line.bad{stroke:var(--bad)} .dashed{stroke-dasharray:5 4}
</style>
`

// width is the width of every picture, which is the width of a document.
const width = 860

// canvas collects the elements of one picture, and where its texts are, so that a test finds texts that overlap.
type canvas struct {
	height float64
	body   strings.Builder
	texts  []label
}

// label is a text with its estimated place.
type label struct {
	text                     string
	left, top, right, bottom float64
}

func newCanvas(height float64) *canvas { return &canvas{height: height} }

// svg returns the picture. Screen readers read the title and the description.
func (c *canvas) svg(title, description string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %g" role="img" aria-labelledby="t d" font-family="system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif" font-size="13">
<title id="t">%s</title>
<desc id="d">%s</desc>
%s<rect class="page" width="%d" height="%g" rx="8"/>
%s</svg>
`, width, c.height, html.EscapeString(title), html.EscapeString(description), style, width, c.height, c.body.String())
}

func (c *canvas) addf(format string, args ...any) { fmt.Fprintf(&c.body, format+"\n", args...) }

// text writes s at its baseline. The class sets color, weight and anchor, as in style.
func (c *canvas) text(class string, x, y float64, s string) {
	c.addf(`<text class="%s" x="%g" y="%g">%s</text>`, class, x, y, html.EscapeString(s))
	length := textLength(class, s)
	left := x
	switch {
	case hasClass(class, "m"):
		left -= length / 2
	case hasClass(class, "e"):
		left -= length
	}
	c.texts = append(c.texts, label{text: s, left: left, top: y - 10, right: left + length, bottom: y + 3})
}

// lines writes several lines below each other.
func (c *canvas) lines(class string, x, y float64, lines ...string) {
	for i, s := range lines {
		c.text(class, x, y+float64(i)*16, s)
	}
}

// box draws a rectangle with a heading and notes, all centered. The heading is in monospace if it is a name.
func (c *canvas) box(x, y, w, h float64, heading string, notes ...string) {
	c.addf(`<rect class="box" x="%g" y="%g" width="%g" height="%g" rx="6"/>`, x, y, w, h)
	class := "m h"
	if strings.ContainsAny(heading, "._") {
		class = "m h mono"
	}
	center := x + w/2
	first := y + h/2 + 4.5 - 8*float64(len(notes))
	c.text(class, center, first, heading)
	c.lines("m dim", center, first+16, notes...)
}

// frame draws a dashed rectangle around elements that belong together.
func (c *canvas) frame(x, y, h float64, heading string) {
	c.addf(`<rect class="frame" x="%g" y="%g" width="330" height="%g" rx="8"/>`, x, y, h)
	c.text("h", x+14, y+22, heading)
}

// arrow draws a line through the points, given as x and y in turn, with a head at its end. The class colors it.
func (c *canvas) arrow(class string, points ...float64) {
	c.line(class, points...)
	n := len(points)
	x, y := points[n-2], points[n-1]
	dx, dy := sign(x-points[n-4]), sign(y-points[n-3])
	// The head's wings are behind the tip and on both sides of the line.
	c.line(class, x-7*dx-4*dy, y-7*dy-4*dx, x, y, x-7*dx+4*dy, y-7*dy+4*dx)
}

func (c *canvas) line(class string, points ...float64) {
	var d strings.Builder
	command := "M"
	for i := 0; i < len(points); i += 2 {
		fmt.Fprintf(&d, "%s%.5g %.5g", command, points[i], points[i+1])
		command = "L"
	}
	c.addf(`<path class="%s" d="%s"/>`, class, d.String())
}

func (c *canvas) dot(class string, x, y float64) {
	c.addf(`<circle class="dot %s" cx="%.5g" cy="%.5g" r="4.5"/>`, class, x, y)
}

func sign(v float64) float64 {
	switch {
	case v > 0:
		return 1
	case v < 0:
		return -1
	}
	return 0
}

// textLength estimates the length in the widest of the named fonts, DejaVu Sans.
func textLength(class, s string) float64 {
	size, em := 13.0, 0.56
	switch {
	case hasClass(class, "mono"):
		size, em = 12, 0.602
	case hasClass(class, "dim"):
		size = 12
	case hasClass(class, "h"):
		em = 0.63
	}
	return size * em * float64(utf8.RuneCountInString(s))
}

func hasClass(class, name string) bool {
	for word := range strings.FieldsSeq(class) {
		if word == name {
			return true
		}
	}
	return false
}
