package pictures

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitdelay/rabbitdelay/integration/tier"
)

var update = flag.Bool("update", false, "write the pictures to docs/images")

const root = "../.."

func TestMain(m *testing.M) { os.Exit(tier.Run(m, tier.Everything, nil)) }

// The files in docs/images match the pictures that this package draws.
func TestPictures(t *testing.T) {
	for _, p := range All() {
		file := filepath.Join(root, "docs", "images", p.Name)
		if *update {
			if err := os.WriteFile(file, []byte(p.SVG), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != p.SVG {
			t.Errorf("%s is out of date (%v); run make pictures", file, err)
		}
		if err := parse(p.SVG); err != nil {
			t.Errorf("%s is not valid XML: %v", p.Name, err)
		}
	}
}

// The pictures in the Chinese documents are the English pictures with Chinese labels, which are not longer.
func TestChinesePictures(t *testing.T) {
	for name, labels := range chinese {
		english, err := os.ReadFile(filepath.Join(root, "docs", "images", name))
		if err != nil {
			t.Fatal(err)
		}
		svg, missing := translate(string(english), labels)
		if len(missing) > 0 {
			t.Errorf("%s: the labels %q have no translation", name, missing)
		}
		file := filepath.Join(root, "docs", "images", strings.TrimSuffix(name, ".svg")+".zh-CN.svg")
		if *update {
			if err := os.WriteFile(file, []byte(svg), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != svg {
			t.Errorf("%s is out of date (%v); run make pictures", file, err)
		}
		if err := parse(svg); err != nil {
			t.Errorf("%s is not XML: %v", file, err)
		}
		for label, translation := range labels {
			if got, limit := lengthInEms(translation), lengthInEms(label); got > limit {
				t.Errorf("%s: the label %q is %.1f em long, want at most the %.1f em of %q", file, translation, got, limit, label)
			}
		}
	}
}

// lengthInEms estimates the length of a text in a font in which Chinese characters are an em wide.
func lengthInEms(s string) (sum float64) {
	for _, r := range s {
		if r >= 0x2e80 {
			sum++
		} else {
			sum += 0.56
		}
	}
	return sum
}

func parse(text string) error {
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// compareExample has figures in the format that make compare writes.
const compareExample = `{
	"recorded": "2026-11-30", "versions": "PostgreSQL 15.18, RabbitMQ 4.3.6, Redis 7.0.15, River 0.51.2, asynq 0.26.0, pgx 5.12.0",
	"lateness": [["rabbitdelay, tasks (database/sql)", "0.10", "9.0 (8.9 to 9.3)", "15", "20", "41"], ["asynq", "-930", "2,500", "4,700", "4,900", "5,000"]],
	"processor": [["rabbitdelay, tasks (database/sql)", "400", "300", "900", "1,600", "1.5"], ["asynq", "90", "", "160", "250 (240 to 270)", "0.25"]],
	"rates": [["rabbitdelay, tasks (database/sql)", "2,700", "0.31", "39,000", "1.5"], ["asynq", "17,000 (16,000 to 18,000)", "2.0", "", ""]]
}`

// The pictures of the comparison are valid XML.
func TestComparison(t *testing.T) {
	all, err := Comparison([]byte(compareExample))
	if err != nil || len(all) != 3 {
		t.Fatalf("got %d pictures, error %v, want 3 pictures", len(all), err)
	}
	for _, p := range all {
		if err := parse(p.SVG); err != nil {
			t.Errorf("%s is not valid XML: %v", p.Name, err)
		}
	}
	if none, err := Comparison([]byte("{}")); err != nil || len(none) > 0 {
		t.Errorf("Comparison without figures: got %d pictures, error %v, want none", len(none), err)
	}
}

// Texts are inside the picture and do not overlap, even with a wide font.
func TestTextsDoNotOverlap(t *testing.T) {
	compared, err := comparisonOf([]byte(compareExample))
	if err != nil || len(compared) != 3 {
		t.Fatalf("got %d pictures, error %v, want 3 pictures", len(compared), err)
	}
	for _, d := range append(drawings(), compared...) {
		c := d.draw()
		for i, a := range c.texts {
			if a.left < 0 || a.top < 0 || a.right > width || a.bottom > c.height {
				t.Errorf("%s: the text %q is partly outside the picture, want it inside", d.name, a.text)
			}
			for _, b := range c.texts[:i] {
				if a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom {
					t.Errorf("%s: the text %q overlaps %q, want no overlap", d.name, a.text, b.text)
				}
			}
		}
	}
}

// The tables in performance.md contain the figures that the plots show.
func TestFiguresAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	var cells []string
	f := readFigures()
	for _, r := range f.Lateness.Rows {
		cells = append(cells, r.Cell)
		if len(valuesOf(r.Cell)) != len(r.Percentiles) {
			t.Errorf("cell %q has %d figures, want one for each of the percentiles %v", r.Cell, len(valuesOf(r.Cell)), r.Percentiles)
		}
	}
	for _, l := range f.Load.Lines {
		cells = append(cells, strings.Join(l.Cells, " | "))
		if len(l.Cells) != len(f.Load.Rates) {
			t.Errorf("%s: got %d cells, want one for each of the rates %v", l.Name, len(l.Cells), f.Load.Rates)
		}
	}
	for _, r := range f.Throughput.Rows {
		cells = append(cells, r.Quorum+" | "+r.Classic)
	}
	for _, cell := range cells {
		if !strings.Contains(string(text), "| "+cell+" |") {
			t.Errorf("performance.md contains no table cell %q, want one", cell)
		}
	}
}

var embedded = regexp.MustCompile(`!\[([^\]]*)\]\(([^)\s]+)\)`)

// Every picture in a document has an alternative text, and every file in docs/images is shown in a document.
func TestAltTexts(t *testing.T) {
	shown := map[string]bool{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got no files (error %v), want at least one", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range embedded.FindAllStringSubmatch(string(text), -1) {
				shown[filepath.Base(m[2])] = true
				if len([]rune(m[1])) < 8 {
					t.Errorf("%s: the alternative text of %s is %q, want at least 8 characters", file, m[2], m[1])
				}
			}
		}
	}
	images, err := os.ReadDir(filepath.Join(root, "docs", "images"))
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images {
		if !shown[image.Name()] {
			t.Errorf("docs/images/%s is not shown in any document; delete it", image.Name())
		}
	}
}
