package browser

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/rabbitdelay/rabbitdelay/integration/servers"
)

// chromium is the browser that all tests share. Each tab has its own cookies.
var chromium struct {
	once   sync.Once
	ctx    context.Context
	cancel func()
	err    error
}

// names lists the possible names of the browser's program, Debian's first.
var names = []string{"chromium", "chromium-browser", "google-chrome"}

func closeBrowser() error {
	if chromium.cancel == nil {
		return nil
	}
	err := chromedp.Cancel(chromium.ctx)
	chromium.cancel()
	return err
}

// openBrowser returns the context of the shared browser, which it starts if necessary. It skips the test if no browser
// is installed.
func openBrowser(t *testing.T) context.Context {
	t.Helper()
	if os.Getenv(servers.EnvSkip) == "1" {
		t.Skipf("skipped: %s is 1", servers.EnvSkip)
	}
	path := ""
	for _, name := range names {
		found, _ := exec.LookPath(name)
		path = cmp.Or(path, found)
	}
	if path == "" {
		t.Skipf("skipped: no browser (%s) is installed; install Debian's package chromium", strings.Join(names, ", "))
	}
	chromium.once.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.DisableGPU)
		if os.Getuid() == 0 {
			options = append(options, chromedp.NoSandbox)
		}
		allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, cancel := chromedp.NewContext(allocator)
		chromium.ctx, chromium.cancel = ctx, func() { cancel(); end() }
		chromium.err = chromedp.Do(ctx)
	})
	if chromium.err != nil {
		t.Fatalf("starting %s: got %v, want nil", path, chromium.err)
	}
	return chromium.ctx
}

// tab is a browser tab of one user.
type tab struct {
	t    *testing.T
	ctx  context.Context
	site *site

	mu      sync.Mutex
	console []string // messages in the browser's console
}

const patience = servers.Patience

// open returns a tab with its own cookies, logged in as the given user.
func (s *site) open(t *testing.T, who string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(openBrowser(t), chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, site: s}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.console = append(b.console, m.String())
			b.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, m := range b.console {
			// Some tests expect status codes other than 200.
			if !strings.Contains(m, "Failed to load resource") && !strings.Contains(m, "net::ERR") {
				t.Errorf("the browser's console contains %q, want no errors", m)
			}
		}
		if t.Failed() && b.t == t {
			t.Logf("the page is %s\n%s", b.location(), b.text("body"))
		}
	})
	if who != "" {
		b.visit("")
		b.login(who)
	}
	return b
}

func (b *tab) login(who string) {
	b.t.Helper()
	b.fill(map[string]string{"name": who, "password": password})
	b.submit("main form")
}

// do runs actions, and fails the test if they take longer than patience.
func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatal(err)
	}
}

// leads runs an action that loads a page, and returns the page's status code.
func (b *tab) leads(step chromedp.Action[chromedp.Void]) int64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	r, err := chromedp.RunResponse(ctx, step)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.Status
}

// visit opens a page, relative to the console.
func (b *tab) visit(path string) int64 {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		r, err := chromedp.RunResponse(ctx, chromedp.Navigate(b.site.url+path))
		switch {
		case err == nil:
			return r.Status
		case ctx.Err() != nil || !strings.Contains(err.Error(), "net::ERR_ABORTED"):
			b.t.Fatal(err)
		}
		<-time.After(50 * time.Millisecond) // the previous page aborts the navigation if it reloads itself at that moment
	}
}

// click follows a link or presses a button by its text.
func (b *tab) click(text string) int64 {
	b.t.Helper()
	path := `//main//*[self::a or self::button][normalize-space(.)="` + text + `"] | //nav//a[normalize-space(.)="` + text + `"]`
	return b.leads(press("document.evaluate(" + strconv.Quote(path) + ", document, null, XPathResult.FIRST_ORDERED_NODE_TYPE).singleNodeValue"))
}

// submit clicks a form's submit button.
func (b *tab) submit(form string) int64 {
	b.t.Helper()
	return b.leads(press("document.querySelector(" + strconv.Quote(form+" button:not([type=button])") + ")"))
}

// press clicks an element as soon as it can be clicked. One script finds and clicks it, because a live page could move
// the element between two steps.
func press(element string) chromedp.Action[chromedp.Void] {
	script := `(() => {
		const e = ` + element + `;
		e?.scrollIntoView({ block: "center", behavior: "instant" });
		const box = e?.getClientRects()[0];
		if (!box || e.disabled || !e.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2))) return false;
		e.click();
		return true;
	})()`
	return func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		for {
			if done, err := chromedp.Evaluate[bool](script)(ctx, target); done || err != nil {
				return chromedp.Void{}, err
			}
			select {
			case <-ctx.Done():
				return chromedp.Void{}, fmt.Errorf("pressing %s: %w", element, ctx.Err())
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

// fill sets the values of form fields by name.
func (b *tab) fill(fields map[string]string) {
	b.t.Helper()
	for name, value := range fields {
		selector := chromedp.CSS(`main [name="` + name + `"]:not([type=hidden])`)
		b.do(chromedp.SetValue(selector, value))
	}
}

func (b *tab) text(selector string) string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS(selector)))
	if err != nil {
		return err.Error()
	}
	return text
}

// value returns the value of a form field.
func (b *tab) value(name string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Value(chromedp.CSS(`main [name="`+name+`"]:not([type=hidden])`)))
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

func eval[T any](b *tab, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		b.t.Fatalf("%s: %v", script, err)
	}
	return v
}

// becomes waits until a script returns true, even if other pages load in the meantime.
func (b *tab) becomes(what, script string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+script+")"))
		if err == nil && is {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("condition not met within %v: %s (%v)\n%s", patience, what, err, b.text("main"))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// shows fails the test unless the page contains the text.
func (b *tab) shows(want string) {
	b.t.Helper()
	if got := b.text("main"); !strings.Contains(got, want) {
		b.t.Errorf("page %s: got\n%s\nwant it to contain %q", b.location(), got, want)
	}
}

// location returns the page's path and query, without the console's prefix.
func (b *tab) location() string {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	at, err := chromedp.Run(ctx, chromedp.Location())
	if err != nil {
		return err.Error()
	}
	return strings.TrimPrefix(at, b.site.url)
}

// without disables JavaScript.
func (b *tab) without() {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		b.t.Fatal(err)
	}
}

// window sets the window's size in CSS pixels and its color scheme, dark or light.
func (b *tab) window(width, height int64, scale float64, scheme string) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: width, Height: height, DeviceScaleFactor: scale,
	}); err != nil {
		b.t.Fatal(err)
	}
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media); err != nil {
		b.t.Fatal(err)
	}
}

// forget deletes the browser's cookies, which ends the session.
func (b *tab) forget() {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, network.ClearBrowserCookies, cdp.Empty{}); err != nil {
		b.t.Fatal(err)
	}
}

// address returns the path of a page with a query.
func address(path string, pairs ...string) string {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return path + "?" + v.Encode()
}
