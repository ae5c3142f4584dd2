package browser

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// hostile is a name that must stay text.
const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`

// dataplane holds whatever it is told.
type dataplane struct{ proxy.NoAbilities }

func (dataplane) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return nil }
func (dataplane) Cleanup(context.Context) error                               { return nil }

// services are how many Services the tests have besides those with names.
const services = 250

// serve runs a proxy with Services and serves its page.
func serve(t *testing.T) (url string) {
	t.Helper()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	tracker.UpdateNode(objects.Node("node-1", hostile, "192.0.2.1"))
	for i := range services {
		tracker.UpdateService(service(fmt.Sprintf("service-%03d", i), fmt.Sprintf("10.96.1.%d", i)))
	}
	tracker.UpdateService(service("web", "10.96.0.10"))
	tracker.UpdateService(service(hostile, "10.96.0.11"))
	bad := service("bad", "10.96.0.12")
	bad.Spec.ExternalIPs = []string{hostile}
	tracker.UpdateService(bad)
	addBalanced(tracker)
	slice := objects.Slice("web-1", "web", "10.244.1.11 @node-1", "10.244.2.11 S")
	slice.Endpoints[1].NodeName = new(hostile)
	tracker.UpdateEndpointSlice(slice)
	tracker.Synced()
	page := inspect.New("Mode test")
	page.SetLimits([]*proxy.Problem{{Kind: "Service", NamespacedName: types.NamespacedName{Namespace: "default", Name: long}, Field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds", Err: errors.New("limited")}})
	applied := make(chan struct{})
	runner := &proxy.Runner{Source: tracker, Backend: dataplane{}, Observers: []proxy.Observer{page.Observer(tracker), {Synced: func(proxy.Sync) { close(applied) }}}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = runner.Run(ctx) }() // It returns the error of the context.
	server := httptest.NewServer(inspect.LocalOnly(page))
	t.Cleanup(func() { server.Close(); cancel(); <-ended })
	select {
	case <-applied:
	case <-time.After(10 * time.Second):
		t.Fatal("no sync in 10 s")
	}
	return server.URL + "/debug/services"
}

// browser is a tab, and what its console has said.
type browser struct {
	*testing.T
	ctx context.Context
	url string

	mu   sync.Mutex
	said []string
}

// open starts a browser at the page.
func open(t *testing.T) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		testenv.CannotRun(t, "needs the Debian package chromium")
	}
	b := &browser{T: t, url: serve(t)}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	b.ctx, cancel = chromedp.NewContext(ctx, chromedp.WithListener(b.hear))
	t.Cleanup(cancel)
	b.do(chromedp.Navigate(b.url))
	return b
}

// wantSilence fails the test if the console has said something, and then if it says nothing of an
// error that it is told.
func (b *browser) wantSilence() {
	b.Helper()
	b.mu.Lock()
	said := strings.Join(b.said, "\n")
	b.mu.Unlock()
	if said != "" {
		b.Errorf("the console says:\n%s", said)
	}
	find(b, chromedp.Evaluate[bool](`console.error("told") || true`))
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.said) == 0 {
		b.Error("the console says nothing of an error, so that this test sees none")
	}
}

// hear notes exceptions, refused content, and all that is written to the console.
func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.said = append(b.said, e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.said = append(b.said, fmt.Sprintf("%s %v", e.Type, e.Args))
	case *log.EventEntryAdded:
		b.said = append(b.said, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	testenv.NoError(b, chromedp.Do(b.ctx, steps...))
}

// find returns what a script or a query finds.
func find[T any](b *browser, action chromedp.Action[T]) T {
	b.Helper()
	found, err := chromedp.Run(b.ctx, action)
	testenv.NoError(b, err)
	return found
}

// prefer makes the colour scheme of the user.
func (b *browser) prefer(scheme string) {
	b.Helper()
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		b.Fatal(err)
	}
}

// enter types into an empty field, and presses Enter.
func (b *browser) enter(field, text string) {
	b.Helper()
	b.do(chromedp.SendKeys(field, text+kb.Enter))
}

// text is the script that finds the visible text of the elements of a selector.
func text(selector string) chromedp.Action[[]string] {
	return chromedp.Evaluate[[]string](fmt.Sprintf("Array.from(document.querySelectorAll(%q), e => e.innerText)", selector))
}

// texts returns the visible text of the elements that a selector finds.
func (b *browser) texts(selector string) []string {
	b.Helper()
	return find(b, text(selector))
}

// await waits until an element has a text. A script fails with navigated when the browser leaves the
// page before its end, as after a click, so that it is asked again.
func (b *browser) await(selector, want string) {
	b.Helper()
	var got []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		found, err := chromedp.Run(b.ctx, text(selector))
		if failure, ok := errors.AsType[*cdproto.Error](err); ok && failure.Code == navigated {
			continue
		} else if err != nil {
			b.Fatal(err)
		}
		got = found
		if slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, want) }) {
			return
		}
	}
	b.Fatalf("%s: got %q, want %q", selector, got, want)
}

// navigated is the code of the error of a script whose page was left before its end. Chromium has no
// code for this alone.
const navigated = -32000

const (
	status = "[role=status]"
	rows   = "#ports > tbody > tr"
)

// TestPage uses the page as people do: it searches, turns pages, asks about a packet, and looks
// at a Service.
func TestPage(t *testing.T) {
	b := open(t)
	b.await(status, fmt.Sprintf("%d of %[1]d service ports, page 1 of 3", services+4))
	if got := len(b.texts(rows)); got != 100 {
		t.Errorf("got %d rows, want 100", got)
	}
	b.do(chromedp.Click("a[rel=next]"))
	b.await(status, "page 2 of 3")

	b.await("dt + dd", "took ")

	const question = "default/web:http"
	b.enter("input[name=destination]:not([type=hidden])", question)
	b.await("ol li", "10.96.0.10")
	b.await("span.forward", "forward")
	b.await(status, "page 1 of 3") // the end of the page
	if kept := find(b, chromedp.Evaluate[string]("document.querySelector('input[name=destination]:not([type=hidden])').value")); kept != question {
		t.Errorf("after the answer, the field has %q, want the question", kept)
	}

	b.enter("input[type=search]", "10.244.1.11")
	b.await(status, "1 of")
	b.await("ol li", "10.96.0.10") // the answer stays

	b.do(chromedp.Click(rows + " a"))
	b.await("h1", "Service default/web")
	b.await("td", "in: ready")
	b.await("td", "out: not ready")
	b.do(chromedp.Click("a[href*=destination]"))
	b.await("ol li", "10.96.0.10")
	b.do(chromedp.Click(".answer a"))
	b.await("h1", "Service default/web")
	b.do(chromedp.Click("a[href='?']"))
	b.await(status, "page 1 of 3")
	b.wantSilence()
}

// TestNothingMatches checks that an empty list says why it is empty.
func TestNothingMatches(t *testing.T) {
	b := open(t)
	b.enter("input[type=search]", "nobody")
	b.await(status, "0 of")
	b.await("main > p", "No name and no address has the text of the filter.")
	b.wantSilence()
}

// TestHostileNames checks that names stay text on the list and on the page of the Service.
func TestHostileNames(t *testing.T) {
	b := open(t)
	b.await("dd", hostile)
	b.await("ul.bad li", "<script>document.title='owned'</script>")
	b.enter("input[type=search]", "10.96.0.11")
	b.await(rows, hostile)
	b.do(chromedp.Click(rows + " a"))
	b.await("h1", "Service default/"+hostile)
	b.do(chromedp.Navigate(b.url + "?service=default/web"))
	b.await("td", hostile)
	b.do(chromedp.Navigate(b.url + "?filter=%22%3E%3Cscript%3Ealert(1)%3C/script%3E"))
	b.await(status, "0 of")
	if got := b.texts("script, img"); len(got) > 0 {
		t.Errorf("got elements %q that names made, want none", got)
	}
	if title := find(b, chromedp.Title()); !strings.Contains(title, "service ports") {
		t.Errorf("got title %q, which a script has set", title)
	}
	b.wantSilence()
}

// unnamed are the controls without a label.
const unnamed = `Array.from(document.querySelectorAll("input:not([type=hidden]), select"), e => e.labels.length ? "" : e.name).filter(x => x)`

// contrasts are the texts whose contrast with the background is below 4.5 (WCAG 2.2, 1.4.3).
const contrasts = `(() => {
	const light = c => { const [r, g, b] = c.match(/[\d.]+/g).map(x => x / 255).map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b }
	const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)$/.test(c)) return c } return getComputedStyle(document.body).backgroundColor }
	const pale = Array.from(document.querySelectorAll("input"), e => {
		const [a, b] = [light(getComputedStyle(e, "::placeholder").color), light(back(e))].sort((x, y) => y - x)
		return (a + .05) / (b + .05) < 4.5 ? "placeholder " + getComputedStyle(e, "::placeholder").color + " on " + back(e) : ""
	})
	return pale.concat(Array.from(document.querySelectorAll("p, td, th, dt, dd, li, h1, h2, a, code, span, input, button, label"), e => {
		const [a, b] = [light(getComputedStyle(e).color), light(back(e))].sort((x, y) => y - x)
		return (a + .05) / (b + .05) < 4.5 ? e.tagName + "." + e.className + " " + getComputedStyle(e).color + " on " + back(e) : ""
	})).filter((x, i, all) => x && all.indexOf(x) == i)
})()`

// broken are the texts that a wide screen must have on one line each: headings of columns, and
// addresses.
const broken = `Array.from(document.querySelectorAll("th, td code"), e => {
	const text = document.createRange()
	text.selectNodeContents(e)
	return new Set(Array.from(text.getClientRects(), r => r.top)).size > 1 ? e.innerText : ""
}).filter(x => x)`

// paths are pages with all that the page may show.
func paths() []string {
	return []string{
		"", "?filter=web&destination=default/web:http", "?service=default/web", "?service=default/none", "?filter=nobody&destination=nobody",
		"?filter=" + long, "?service=default/" + long, "?filter=nobody&destination=" + long,
	}
}

// TestEverybodyCanRead checks labels, contrast in both colour schemes, that no width of the screen
// needs horizontal scrolling or breaks addresses, and that the keyboard reaches all controls.
func TestEverybodyCanRead(t *testing.T) {
	b := open(t)
	list := func(script string) []string {
		t.Helper()
		return find(b, chromedp.Evaluate[[]string](script))
	}
	for _, path := range paths() {
		b.do(chromedp.Navigate(b.url + path))
		if got := list(unnamed); len(got) > 0 {
			t.Errorf("%q: controls %q have no label", path, got)
		}
		for _, scheme := range []string{"light", "dark"} {
			b.prefer(scheme)
			if got := list(contrasts); len(got) > 0 {
				t.Errorf("%q, %s: contrast too low: %q", path, scheme, got)
			}
		}
		for _, width := range []int64{320, 420, 720, 1100, 1101, 1280} {
			b.do(chromedp.EmulateViewport(width, 800))
			if got := find(b, chromedp.Evaluate[int64]("document.documentElement.scrollWidth")); got > width {
				t.Errorf("%q: the page is %d pixels wide, want at most %d", path, got, width)
			}
		}
		if got := list(broken); len(got) > 0 {
			t.Errorf("%q: got several lines for %q, want one", path, got)
		}
	}
	b.do(chromedp.Navigate(b.url))
	want := []string{"2 problems", "Where does a packet go?", "Service ports", "2 problems", "protocol", "source", "interface", "destination", "Ask", "filter", "Filter"}
	for _, name := range want {
		b.do(chromedp.KeyEvent(kb.Tab))
		if got := find(b, chromedp.Evaluate[string]("document.activeElement.name || document.activeElement.innerText")); got != name {
			t.Errorf("Tab: got control %q, want %q", got, name)
		}
	}
}

// TestScheme checks that the dark scheme is dark.
func TestScheme(t *testing.T) {
	b := open(t)
	colours := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme)
		colours[scheme] = find(b, chromedp.Evaluate[string]("getComputedStyle(document.body).backgroundColor"))
	}
	if colours["light"] != "rgb(255, 255, 255)" || colours["dark"] != "rgb(13, 17, 23)" {
		t.Errorf("got backgrounds %v, want white and nearly black", colours)
	}
}
