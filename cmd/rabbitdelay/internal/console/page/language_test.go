package page

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template/parse"
	"unicode"

	"github.com/rabbitdelay/rabbitdelay/cmd/rabbitdelay/internal/console/service"
	"github.com/rabbitdelay/rabbitdelay/internal/taskview"
)

// asked returns the constant strings that templates and Go files look up in the catalogue.
func asked(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := templateFiles.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		trees := map[string]*parse.Tree{}
		tree := parse.New(name)
		tree.Mode = parse.SkipFuncCheck
		if _, err := tree.Parse(string(text), "", "", trees); err != nil {
			t.Fatal(err)
		}
		for _, tree := range trees {
			inTemplate(tree.Root, func(text string) { texts[text] = name })
		}
	}
	files, err := fs.Glob(os.DirFS("."), "*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, "../../trace/why.go") { // why.go explains tasks in the language of the page
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			arguments := map[string][]int{"text": {0}, "say": {0}, "plural": {2}, "count": {1, 2}}
			for _, i := range arguments[method.Sel.Name] {
				if i >= len(call.Args) {
					break
				}
				if lit, ok := call.Args[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					texts[text] = name
				}
			}
			return true
		})
	}
	return texts
}

// inTemplate calls each with every constant text that a part of a template looks up.
func inTemplate(n parse.Node, each func(string)) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, x := range n.Nodes {
				inTemplate(x, each)
			}
		}
	case *parse.ActionNode:
		inTemplate(n.Pipe, each)
	case *parse.IfNode:
		inBranch(&n.BranchNode, each)
	case *parse.RangeNode:
		inBranch(&n.BranchNode, each)
	case *parse.WithNode:
		inBranch(&n.BranchNode, each)
	case *parse.TemplateNode:
		inTemplate(n.Pipe, each)
	case *parse.PipeNode:
		if n == nil {
			return
		}
		for _, cmd := range n.Cmds {
			inTemplate(cmd, each)
		}
	case *parse.CommandNode:
		argument := map[string]int{"t": 1, "say": 1, "plural": 3}
		if id, ok := n.Args[0].(*parse.IdentifierNode); ok {
			if i, ok := argument[id.Ident]; ok && i < len(n.Args) {
				if text, ok := n.Args[i].(*parse.StringNode); ok {
					each(text.Text)
				}
			}
		}
		for _, arg := range n.Args {
			inTemplate(arg, each)
		}
	}
}

func inBranch(n *parse.BranchNode, each func(string)) {
	inTemplate(n.Pipe, each)
	inTemplate(n.List, each)
	inTemplate(n.ElseList, each)
}

// inTables returns the texts that are looked up by a variable, from tables and from other packages.
func inTables() []string {
	texts := slices.Clone(scriptTexts)
	add := func(more ...string) { texts = append(texts, more...) }
	for _, s := range sections {
		add(s.name)
	}
	for _, a := range acts {
		add(a.label, a.heading, a.ask[1], a.button[1])
		if a.name != "" {
			add(a.press, a.question, a.past)
		}
	}
	for _, k := range kinds {
		add(k.heading, k.advice)
	}
	for _, o := range outcomes {
		add(o.text)
	}
	for _, o := range groupOrders {
		add(o.label)
	}
	for _, o := range taskErrorOrders {
		add(o.label)
	}
	for _, p := range periods {
		add(p.Label)
	}
	for _, u := range ringUnits {
		add(u.name)
	}
	for _, s := range recurringSorts {
		add(s.label)
	}
	for _, a := range recurringActs {
		add(a.label, a.question)
		if a.past != "" {
			add(a.past)
		}
	}
	for _, a := range jobActs {
		add(a.label, a.question)
	}
	add(slices.Collect(maps.Values(heldNotices))...)
	add(slices.Collect(maps.Values(horizonLabels))...)
	add(slices.Collect(maps.Values(uniqueNotices))...)
	for _, s := range statuses {
		add(string(s))
	}
	for _, p := range taskview.Properties {
		add(p.Label)
	}
	return append(texts, foreignTexts...)
}

// The Chinese catalogue contains a translation of every text, and no other texts.
func TestCatalogue(t *testing.T) {
	wanted := asked(t)
	if len(wanted) < 200 {
		t.Fatalf("got %d texts from the templates and Go files, want at least 200", len(wanted))
	}
	for _, text := range inTables() {
		wanted[text] = "a table"
	}
	for _, text := range slices.Sorted(maps.Keys(wanted)) {
		if _, ok := chineseTexts[text]; !ok {
			t.Errorf("%s: the Chinese catalogue has no translation of %q, want one", wanted[text], text)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(chineseTexts)) {
		if _, ok := wanted[text]; !ok {
			t.Errorf("the Chinese catalogue contains %q, want only texts in use", text)
		}
	}
}

var placeholder = regexp.MustCompile(`%(\[\d+\])?[a-z%]`)

// A translation has the same placeholders as the English text, possibly in another order.
func TestPlaceholders(t *testing.T) {
	for text, translated := range chineseTexts {
		args := []any{"«1»", "«2»", "«3»", "«4»"}[:strings.Count(strings.ReplaceAll(text, "%%", ""), "%")]
		if len(args) == 0 {
			if placeholder.MatchString(translated) {
				t.Errorf("%q is translated as %q, want no placeholder", text, translated)
			}
			continue
		}
		for _, l := range []*language{english, chinese} {
			got := l.text(text, args...)
			for _, arg := range args {
				if strings.Count(got, arg.(string)) != 1 {
					t.Errorf("%s: %q is translated as %q, want every argument once", l.tag, text, got)
				}
			}
			if strings.Contains(got, "%!") {
				t.Errorf(`%s: %q is formatted as %q, want no "%%!" in it`, l.tag, text, got)
			}
		}
	}
}

// pseudo returns a language without Latin letters, which reveals texts that are not looked up in the catalogue.
func pseudo() *language {
	texts := map[string]string{}
	for text := range chineseTexts {
		kept := placeholder.FindAllString(text, -1)
		parts := placeholder.Split(text, -1)
		var b strings.Builder
		for i, part := range parts {
			b.WriteString(strings.Map(func(r rune) rune {
				if unicode.IsLetter(r) {
					return 'ж'
				}
				return r
			}, part))
			if i < len(kept) {
				b.WriteString(kept[i])
			}
		}
		texts[text] = b.String()
	}
	return &language{tag: "xx", texts: texts, day: "2 1月", date: "2 1月 2006"}
}

var (
	// foreign matches elements with texts from other sources: names, bodies, errors, and English texts from other
	// components.
	foreign = []*regexp.Regexp{
		regexp.MustCompile(`(?s)<time\b.*?</time>`), regexp.MustCompile(`(?s)<bdi\b.*?</bdi>`), regexp.MustCompile(`(?s)<pre\b.*?</pre>`),
		regexp.MustCompile(`(?s)<kbd>.*?</kbd>`), regexp.MustCompile(`(?s)<datalist\b.*?</datalist>`), regexp.MustCompile(`(?s)<(?:p|b|li|span|button)\b[^>]* lang="[^"]*">.*?</(?:p|b|li|span|button)>`),
	}
	textarea  = regexp.MustCompile(`(?s)<textarea\b([^>]*)>.*?</textarea>`)
	tag       = regexp.MustCompile(`(?s)<[^>]*>`)
	attribute = regexp.MustCompile(` (?:aria-label|title|alt|data-label)="([^"]*)"`)
	latin     = regexp.MustCompile(`[A-Za-z]{3,}`)
	// technical matches words that are the same in every language.
	technical = regexp.MustCompile(`RabbitMQ|CSV|JSON|UTC|GMT|Cron|cron|base64|English|rabbitdelay requeue --from|Europe/Berlin|tomorrow|CET|(?:\d+(?:mo|ms|[dhms]))+`)
	// fixtures matches names and errors from the fixtures that are part of a text.
	fixtures = regexp.MustCompile(`order-\d+-expire|smtp: .* messages|[0-9a-f…-]*0123456789abcdef[0-9a-f…-]*|[0-9a-f]+…|&lt;/?script&gt;|alert\(1\)|onmouseover|invoice\S*|\bmail\b|\bbinary\b|\bshop\b|nightly-report@|>rabbitdelay<`)
)

// human returns the texts on a page, except those from other sources.
func human(page string) []string {
	_, page, _ = strings.Cut(page, "<body")
	for _, element := range foreign {
		page = element.ReplaceAllString(page, "")
	}
	page = textarea.ReplaceAllString(page, "<textarea$1>")
	var texts []string
	for _, m := range attribute.FindAllStringSubmatch(page, -1) {
		texts = append(texts, m[1])
	}
	return append(texts, tag.Split(page, -1)...)
}

// No page contains a text that is missing from the catalogue.
func TestNoTextOutsideOfTheCatalogue(t *testing.T) {
	l := pseudo()
	for _, role := range []service.Role{service.RoleOperator, service.RoleViewer} {
		for _, calm := range []bool{false, true} {
			c := open(role)
			c.calm = calm
			c.pages.speak = func(*http.Request) *language { return l }
			seen := map[string]bool{}
			for _, path := range everyPage(role) {
				for _, text := range human(c.get(path).Body.String()) {
					if word := latin.FindString(technical.ReplaceAllString(fixtures.ReplaceAllString(text, ""), "")); word != "" && !seen[word] {
						seen[word] = true
						t.Errorf("page %s: the word %q is not from the catalogue: %q", path, word, strings.TrimSpace(text))
					}
				}
			}
		}
	}
}

// everyPage returns the addresses of all pages and forms, including error pages.
func everyPage(role service.Role) []string {
	paths := append(slices.Clone(reading), "nothing", "tasks/x", "job?id=none", "task?id=none", "recurring-task?name=none", "task?done=run&id=empty", "held?done=pause", "recurring?done=delete", "retire", "?over=week")
	if role == service.RoleOperator {
		for path, form := range asking {
			paths = append(paths, withQuery(path, form))
		}
		for _, a := range acts {
			paths = append(paths, link("bulk", "action", string(a.kind)), link("bulk", "action", string(a.kind), "at", "+1h", "by", "1h", "spread", "10m", "queue", "mail", "tag", "tenant-7", "from", "2026-11-01 08:00"))
		}
		paths = append(paths, "requeue?queue=mail.dead&dry=1", "discard?queue=mail.dead&dry=1", "task-run?id=order-10035-expire", "recurring-edit", "recurring-edit?edit=heartbeat", "task-new?copy=binary", "destination-resume?queue=mail")
	}
	return paths
}

// A page is in the browser's preferred language, unless the user has chosen another one.
func TestLanguages(t *testing.T) {
	for accept, want := range map[string]string{
		"": "en", "zh-CN,zh;q=0.9,en;q=0.8": "zh-CN", "zh": "zh-CN", "en-US,en;q=0.9,zh;q=0.8": "en", "de-DE,de;q=0.9,en;q=0.8": "en",
		"fr, zh-TW;q=0.5, en;q=0.4": "zh-CN", "zh;q=0": "en", "*": "en", "zh;q=x, en;q=0.1": "en", ";;;,": "en",
	} {
		c := open(service.RoleOperator)
		r := httptest.NewRequest(http.MethodGet, "/tasks", http.NoBody)
		r.Header.Set("Accept-Language", accept)
		if body := c.do(r).Body.String(); !strings.Contains(body, `<html lang="`+want+`"`) {
			t.Errorf("Accept-Language %q: got %.100s, want <html lang=%q", accept, body, want)
		}
		r.AddCookie(&http.Cookie{Name: languageCookie, Value: "zh-CN"})
		if body := c.do(r).Body.String(); !strings.Contains(body, `<html lang="zh-CN"`) {
			t.Errorf("Accept-Language %q with zh-CN chosen: got %.100s, want <html lang=\"zh-CN\"", accept, body)
		}
	}
}

// The sentence that explains a task is in the language of the page, and the error in it is unchanged.
func TestExplanationsAreTranslated(t *testing.T) {
	c := open(service.RoleOperator)
	for path, want := range map[string]string{
		"task?id=order-10035-expire":  "共 5 次尝试：smtp: 451 4.3.2 system not accepting network messages；",
		"trace?id=order-10035-expire": "共 5 次尝试：smtp: 451 4.3.2 system not accepting network messages；",
		"trace?id=none":               "没有找到此 ID 的任何信息",
	} {
		r := httptest.NewRequest(http.MethodGet, "/"+path, http.NoBody)
		r.Header.Set("Accept-Language", "zh-CN")
		_, lead, _ := strings.Cut(c.do(r).Body.String(), `<p class="lead">`)
		if lead, _, _ = strings.Cut(lead, "</p>"); !strings.Contains(lead, want) {
			t.Errorf("page %s: got the lead %s, want it to contain %q", path, lead, want)
		}
	}
}

// The script's texts are in the catalogue too.
func TestTextsOfTheScript(t *testing.T) {
	script, err := assetFiles.ReadFile("assets/console.js")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, m := range regexp.MustCompile(`\btext\("([^"]*)"`).FindAllStringSubmatch(string(script), -1) {
		used[m[1]] = true
	}
	for _, text := range scriptTexts {
		if !used[text] {
			t.Errorf("scriptTexts contains %q, want only texts that the script uses", text)
		}
		delete(used, text)
	}
	for text := range used {
		t.Errorf("the script uses %q, want it in scriptTexts", text)
	}
}

// A singular text may omit the number.
func TestPluralWithoutANumber(t *testing.T) {
	for n, want := range map[int64]string{1: "once,", 2: "2 times, last"} {
		if got := english.plural(n, "once,", "%s times, last"); got != want {
			t.Errorf("plural(%d): got %q, want %q", n, got, want)
		}
	}
}
