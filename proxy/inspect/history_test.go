package inspect

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// TestSyncs checks what the page tells of syncs: numbers, errors, refused ports, repairs, and the last one.
func TestSyncs(t *testing.T) {
	p := New("Mode test")
	synced, verified := p.Observer(nil).Synced, p.Observer(nil).Verified
	s := many(2)
	start := time.Now().Add(-time.Hour)
	next := func(x proxy.Sync) {
		start = start.Add(time.Second)
		x.Start, x.Duration = start, time.Millisecond
		synced(x)
	}
	next(proxy.Sync{Full: true, Operations: 5, Err: errors.New("no <kernel>")})
	if at, state := p.history.state(); !at.Applied.IsZero() || state.Failed != 1 || state.Error != "no <kernel>" || !state.Held.IsZero() {
		t.Errorf("after a failure: got %+v and %+v, want nothing held, and the error", at, state)
	}
	next(proxy.Sync{Full: true, Operations: 100, Applied: s})
	next(proxy.Sync{Full: true, Applied: s})
	next(proxy.Sync{Full: true, Operations: 1, Applied: s}) // a repair
	next(proxy.Sync{Operations: 4, Changed: 1, Applied: s, Refused: proxy.PortErrors{clusterPort("a/b", "10.96.0.1:80").Name: errors.New("refused")}})
	verified(s)
	held, state := p.history.state()
	want := syncs{
		Count: 5, Failed: 1, Repairs: 1, Refused: 1, Error: "no <kernel>", Held: start.Add(time.Millisecond),
		Last:    &syncRecord{End: start.Add(time.Millisecond), Duration: time.Millisecond, Changed: 1, Operations: 4},
		Errored: state.Errored, Verified: state.Verified,
	}
	if diff := cmp.Diff(want, state); diff != "" || state.Verified.IsZero() || held.Operations != 4 {
		t.Errorf("got a last sync of %d operations, verified at %v (-want +got):\n%s", held.Operations, state.Verified, diff)
	}
}

func TestTexts(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 999: "999ns", 12345: "12.3µs", 1234567: "1.23ms", 999999: "1ms", 61 * time.Second: "1m1s", 100 * time.Hour: "100h0m0s",
	} {
		if got := round(d).String(); got != want {
			t.Errorf("%d ns: got %s, want %s", d, got, want)
		}
	}
	if got := ago(time.Now().Add(-90*time.Second - time.Millisecond)); got != "1m30s ago" {
		t.Errorf("got %s, want 1m30s ago", got)
	}
	if got := ago(time.Time{}) + ago(time.Now()); !strings.HasPrefix(got, "neverjust now") {
		t.Errorf("got %s, want never, and just now", got)
	}
}

// The page says how changes of other programs are noticed since everything was verified.
func TestHowDriftIsNoticed(t *testing.T) {
	p := newPage(snapshot(t, service("web", "10.96.0.10")))
	testenv.NoError(t, p.Observer(nil).Begin(&proxy.Runner{Backend: checker{}, ResyncInterval: time.Minute}))
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	if want := "changes of other programs are noticed at the next resync, each 1m0s"; !strings.Contains(w.Body.String(), want) {
		t.Errorf("page without a watch: got\n%s\nwant %q in it", w.Body, want)
	}
	v := p.view(nil)
	v.Syncs.Watching = true
	var page strings.Builder
	if err := p.html.Execute(&page, v); err != nil || !strings.Contains(page.String(), "the backend waits for changes of other programs, and looks at everything each 1m0s\n") {
		t.Errorf("page with a watch: error %v, got\n%s", err, page.String())
	}
}
