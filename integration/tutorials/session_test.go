package tutorials

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitdelay/rabbitdelay/integration/binary"
	"github.com/rabbitdelay/rabbitdelay/integration/guard"
	"github.com/rabbitdelay/rabbitdelay/integration/suite"
)

var update = flag.Bool("update", false, "update the output of commands in the tutorials where it differs")

const (
	interrupt = "^C" // typed by the reader
	anything  = "…"  // a line of a page that matches any number of lines
)

// A tutorial is a page with its programs, and the actions of the test in place of the reader.
type tutorial struct {
	page       string            // the page's path below docs
	programs   string            // the folder of its programs
	real       map[string]string // addresses that the page uses, and those of the test's servers
	tools      map[string]string // names and paths of further programs that the reader has installed
	standIns   []standIn
	begin      string                      // a folder with the files that the reader starts with, in a module shop; empty for none
	containers []string                    // containers that the reader starts, and which must not outlive the test
	serving    []string                    // commands that run until they are interrupted
	waits      map[string]func(s *session) // by command, what to wait for before it, as long as a reader would take to type
}

// A standIn replaces commands that start with a prefix and need a registry, a published module or the reader's Docker.
// The output of such a command is not compared.
type standIn struct {
	prefix string
	do     func(s *session)
}

// A session is a reader's terminal. A program that keeps running has a second terminal.
type session struct {
	t       *testing.T
	tut     tutorial
	page    *page
	home    string // the reader's home directory
	dir     string // the working directory
	env     []string
	bin     string // the first directory in PATH
	guard   *guard.Guard
	running *process
	changed map[int]string // new contents of console blocks
}

// follow carries out the steps of a tutorial, and compares the output with the page.
func follow(t *testing.T, tut tutorial) {
	t.Helper()
	p := readPage(t, tut.page)
	p.checkCode(t, tut.programs)
	if t.Failed() {
		return
	}
	s := newSession(t, tut, p)
	for i, b := range p.parts {
		switch {
		case b.file != "":
			s.write(b.file, b.content)
		case b.kind == "go":
			s.copyFiles(stepDir(tut.programs, b.step)) // the page shows only what changes
		case b.kind == "console":
			s.console(i)
		}
		if t.Failed() && !*update {
			return
		}
	}
	if s.running != nil {
		t.Errorf("%s: %q is still running at the end of the page, want ^C before", p.path, s.running.typed)
	}
	if *update {
		s.rewrite()
	}
}

func newSession(t *testing.T, tut tutorial, p *page) *session {
	t.Helper()
	home := t.TempDir()
	bin := filepath.Join(home, ".bin")
	suite.MustSucceed(t, os.Mkdir(bin, 0o755))
	for name, path := range tut.tools {
		suite.MustSucceed(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	g, err := guard.New()
	suite.MustSucceed(t, err)
	for _, name := range tut.containers {
		suite.MustSucceed(t, g.Container(name))
	}
	s := &session{t: t, tut: tut, page: p, home: home, dir: home, bin: bin, guard: g, changed: map[int]string{}}
	for _, kv := range os.Environ() { // the reader does not have the settings of the tests
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "RABBITDELAY_"), name == "AMQP_URL", name == "PATH", name == "GOFLAGS", name == "CGO_ENABLED":
		default:
			s.env = append(s.env, kv)
		}
	}
	// On the reader's terminal, curl shows no progress.
	suite.MustSucceed(t, os.WriteFile(filepath.Join(home, ".curlrc"), []byte("silent\nshow-error\n"), 0o600))
	s.env = append(s.env, "PATH="+bin+":"+os.Getenv("PATH"), "CURL_HOME="+home, "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1",
		"CGO_ENABLED=0", "GOFLAGS=-trimpath -mod=mod") // the same settings as in the Makefile, so that compiled packages are shared
	if tut.begin != "" {
		s.dir = filepath.Join(home, "shop")
		s.copyFiles(tut.begin)
		s.require()
	}
	t.Cleanup(func() {
		if s.running != nil {
			suite.MustSucceed(t, s.running.Kill())
		}
		suite.MustSucceed(t, g.Dismiss())
	})
	return s
}

// longestDelay is longer than the delays of orders in the tutorials.
const longestDelay = 25 * time.Second

// install makes the program available, as "go install" does. For a reader, that takes longer than the delay of an
// order, so later commands show all orders as due.
func (s *session) install() {
	<-time.After(longestDelay)
	suite.MustSucceed(s.t, os.Symlink(rabbitdelay(s.t), filepath.Join(s.bin, "rabbitdelay")))
}

// rabbitdelay returns the path of the program, which it builds if necessary.
func rabbitdelay(t *testing.T) string {
	t.Helper()
	c, err := binary.Command(t.Context())
	suite.MustSucceed(t, err)
	return c.Path
}

// require makes the reader's module require this repository, as "go get" does with a published version.
func (s *session) require() {
	root, err := filepath.Abs("../..")
	suite.MustSucceed(s.t, err)
	ours, err := os.ReadFile(filepath.Join(root, "go.mod"))
	suite.MustSucceed(s.t, err)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	suite.MustSucceed(s.t, err)
	_, requirements, _ := strings.Cut(string(ours), "\n")
	const module = "github.com/rabbitdelay/rabbitdelay"
	s.write("go.mod", fmt.Sprintf("module shop\n%s\nrequire %s v0.0.0\nreplace %s => %s\n", requirements, module, module, root))
	s.write("go.sum", string(sums))
}

// write writes a file that the reader creates, with the addresses of the test.
func (s *session) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	suite.MustSucceed(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
	suite.MustSucceed(s.t, os.WriteFile(path, []byte(s.toReal(content)), 0o644))
}

// copyFiles replaces the reader's files with those of a folder, except for its tests.
func (s *session) copyFiles(dir string) {
	s.t.Helper()
	files, err := os.ReadDir(dir)
	suite.MustSucceed(s.t, err)
	for _, f := range files {
		if f.IsDir() || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, f.Name()))
		suite.MustSucceed(s.t, err)
		s.write(f.Name(), string(content))
	}
}

func (s *session) toReal(text string) string {
	for shown, its := range s.tut.real {
		text = strings.ReplaceAll(text, shown, its)
	}
	return text
}

func (s *session) toShown(text string) string {
	for shown, its := range s.tut.real {
		text = strings.ReplaceAll(text, its, shown)
	}
	return text
}

// console runs the commands in a block.
func (s *session) console(number int) {
	s.t.Helper()
	b := s.page.parts[number]
	list := b.commands()
	for i := range list {
		c := &list[i]
		s.t.Logf("%s: $ %s", s.page.at(b), c.typed)
		var got []string
		want := c.prints
		switch {
		case c.typed == "" && s.running == nil:
			s.t.Fatalf("%s: no program is running that could print this", s.page.at(b))
		case c.typed == "" && len(want) > 0 && want[0] == interrupt:
			got = append([]string{interrupt}, s.end()...)
		case c.typed == "":
			got = s.running.next(s.t, want)
		case slices.Contains(s.tut.serving, c.typed):
			if s.running != nil {
				s.t.Fatalf("%s: %q is still running", s.page.at(b), s.running.typed)
			}
			s.running = s.start(c.typed)
			got = s.running.next(s.t, want)
		case strings.HasPrefix(c.typed, "export "):
			s.env = append(s.env, s.toReal(strings.TrimPrefix(c.typed, "export ")))
		case s.standIn(c.typed):
			continue
		default:
			got = s.run(c.typed)
		}
		if same(want, got) {
			continue
		}
		if *update {
			c.prints = got
			continue
		}
		s.t.Errorf("%s: %q printed\n\t%s\nwant\n\t%s", s.page.at(b), c.typed, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	if text := join(list); text != b.content {
		s.changed[number] = text
	}
}

// rewrite updates the page with the actual output.
func (s *session) rewrite() {
	text := s.page.text
	for i, b := range slices.Backward(s.page.parts) {
		if content, ok := s.changed[i]; ok {
			text = text[:b.from] + content + text[b.from+len(b.content):]
		}
	}
	suite.MustSucceed(s.t, os.WriteFile(s.page.path, []byte(text), 0o600))
}

func (s *session) standIn(typed string) bool {
	for _, x := range s.tut.standIns {
		if strings.HasPrefix(typed, x.prefix) {
			x.do(s)
			return true
		}
	}
	return false
}

// run runs a command until it exits, and returns its output. The working directory is kept for the next command.
func (s *session) run(typed string) []string {
	s.t.Helper()
	if strings.HasPrefix(typed, "curl ") {
		s.awaitShop()
	}
	if wait := s.tut.waits[typed]; wait != nil {
		wait(s)
	}
	p := s.start(typed + "\nstatus=$?; pwd >" + filepath.Join(s.home, ".pwd") + "; exit $status")
	ctx, cancel := context.WithTimeout(s.t.Context(), suite.Patience)
	defer cancel()
	if err := p.Wait(ctx); err != nil && ctx.Err() != nil {
		s.t.Fatalf("%q did not exit in time; it printed\n%s", typed, strings.Join(p.lines(), "\n"))
	}
	dir, err := os.ReadFile(filepath.Join(s.home, ".pwd"))
	suite.MustSucceed(s.t, err)
	s.dir = strings.TrimSpace(string(dir))
	return p.lines()
}

// shopAddress is the address of the shop on every page.
const shopAddress = "127.0.0.1:8080"

// awaitShop waits until the shop accepts connections, as it does by the time a reader has typed a command.
func (s *session) awaitShop() {
	s.t.Helper()
	suite.Eventually(s.t, "the shop accepts connections", func() bool {
		c, err := net.Dial("tcp", s.toReal(shopAddress))
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// awaitSent waits until the shop's relay has sent the message of a task.
func (s *session) awaitSent(id string) {
	s.t.Helper()
	suite.Eventually(s.t, "the message of "+id+" is sent", func() bool {
		show, err := binary.Command(s.t.Context(), "tasks", "show", id, "-f", "shop.yaml", "--json")
		suite.MustSucceed(s.t, err)
		show.Dir = s.dir
		out, err := show.Output()
		var task struct {
			Sends int `json:"sends"`
		}
		return err == nil && json.Unmarshal(out, &task) == nil && task.Sends > 0
	})
}

// A process is a program that the reader has started.
type process struct {
	*guard.Process
	typed string
	s     *session

	mu    sync.Mutex
	out   bytes.Buffer
	more  chan struct{} // receives when there is more output
	shown map[int]bool  // the lines that the page has shown
}

func (s *session) start(typed string) *process {
	s.t.Helper()
	p := &process{typed: typed, s: s, more: make(chan struct{}, 1), shown: map[int]bool{}}
	c := exec.Command("/bin/sh", "-c", s.toReal(typed))
	c.Dir, c.Env = s.dir, s.env
	c.Stdout, c.Stderr = p, p
	var err error
	p.Process, err = s.guard.Start(c)
	suite.MustSucceed(s.t, err)
	return p
}

// Write appends to the output.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
	return p.out.Write(b)
}

// lines returns the complete lines of output, as the page shows them.
func (p *process) lines() (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range strings.Lines(p.s.toShown(p.out.String())) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return lines
}

// next waits until the process has printed the lines that the page shows next, and returns them. They may be in any
// order, because the parts of a service log concurrently. If they do not appear, next returns the output that the page
// has not shown yet.
func (p *process) next(t *testing.T, want []string) []string {
	t.Helper()
	deadline := time.After(suite.Patience)
	for {
		if p.show(want) {
			return want
		}
		var quiet <-chan time.Time
		if *update {
			quiet = time.After(6 * time.Second)
		}
		select {
		case <-p.more:
			continue
		case <-quiet:
			if len(p.rest()) == 0 {
				continue
			}
		case <-p.Ended():
			if p.show(want) {
				return want
			}
		case <-deadline:
		}
		got := p.rest()
		p.show(got)
		return got
	}
}

// rest returns the lines of output that the page has not shown.
func (p *process) rest() (lines []string) {
	for i, line := range p.lines() {
		if !p.shown[i] {
			lines = append(lines, line)
		}
	}
	return lines
}

// show marks lines as shown, each with a line of output that matches it. If any line has no match, nothing changes.
func (p *process) show(want []string) bool {
	lines, now := p.lines(), map[int]bool{}
	for _, w := range want {
		i := slices.IndexFunc(lines, func(line string) bool { return blurred(line) == blurred(w) })
		for i >= 0 && (p.shown[i] || now[i]) {
			more := slices.IndexFunc(lines[i+1:], func(line string) bool { return blurred(line) == blurred(w) })
			if more < 0 {
				return false
			}
			i += 1 + more
		}
		if i < 0 {
			return false
		}
		now[i] = true
	}
	maps.Copy(p.shown, now)
	return true
}

// end interrupts the running program, as Ctrl-C does, and returns the rest of its output after it has exited.
func (s *session) end() []string {
	s.t.Helper()
	p := s.running
	suite.MustSucceed(s.t, syscall.Kill(-p.ID(), syscall.SIGINT))
	ctx, cancel := context.WithTimeout(s.t.Context(), suite.Patience)
	defer cancel()
	if err := p.Wait(ctx); err != nil && ctx.Err() != nil {
		s.t.Fatalf("%q did not exit in time after ^C; it printed\n%s", p.typed, strings.Join(p.lines(), "\n"))
	}
	s.running = nil
	return p.rest()
}

// same reports whether all lines on a page match all printed lines. They may be in another order, because the parts of
// a service log concurrently.
func same(want, got []string) bool {
	if n, ok := match(want, got); ok && n == len(got) {
		return true
	}
	sorted := func(lines []string) []string {
		all := make([]string, len(lines))
		for i, line := range lines {
			all[i] = blurred(line)
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(sorted(want), sorted(got))
}

// match compares lines, ignoring times and similar values, and returns how many lines of got match want.
func match(want, got []string) (n int, ok bool) {
	for i, w := range want {
		if w == anything {
			if i == len(want)-1 {
				return len(got), true
			}
			for at := range got[n:] {
				if more, ok := match(want[i+1:], got[n+at:]); ok {
					return n + at + more, true
				}
			}
			return 0, false
		}
		if n == len(got) {
			return n, false
		}
		if blurred(w) != blurred(got[n]) {
			return n, false
		}
		n++
	}
	return n, true
}

// blurs has patterns for values that vary from run to run, and the texts that replace them in a comparison.
var blurs = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?`), "TIME"},
	{regexp.MustCompile(`RabbitMQ \d+\.\d+(\.\d+)?`), "RabbitMQ VERSION"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`\b(\d+(\.\d+)?(µs|ms|s|m|h|d))+\b`), "DURATION"},
	{regexp.MustCompile(`\d+\.\d+ s \(\d+/s\)`), "DURATION"},
	{regexp.MustCompile(` +`), " "},
}

func blurred(line string) string {
	for _, b := range blurs {
		line = b.pattern.ReplaceAllString(line, b.by)
	}
	return strings.TrimSpace(line)
}

// freeAddress returns an address on this machine on which no program listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	suite.MustSucceed(t, err)
	defer l.Close()
	return l.Addr().String()
}
