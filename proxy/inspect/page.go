package inspect

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vipkit/vipkit/proxy"
)

//go:embed *.html
var files embed.FS

// Page is the debug page of one proxy. It serves any number of requests at once.
type Page struct {
	title   string
	html    *template.Template
	runner  atomic.Pointer[proxy.Runner]
	tracker atomic.Pointer[proxy.ServiceChangeTracker]
	history history
}

// New makes a page. It has content once a Runner calls its [Page.Observer]. The title says what is
// shown, such as the kind of the dataplane.
func New(title string) *Page {
	return &Page{title: title, html: template.Must(template.New("page.html").Funcs(functions()).ParseFS(files, "*.html"))}
}

// Observer returns what the Runner must call: an element of Runner.Observers. From the tracker,
// whose snapshots the Runner gets, the page knows the endpoints that are in no pool; nil is
// allowed. If the Runner's Backend checks settings of the node (CheckNode of [proxy.Abilities]), they are
// problems on the page: each request checks them.
func (p *Page) Observer(tracker *proxy.ServiceChangeTracker) proxy.Observer {
	p.tracker.Store(tracker)
	return proxy.Observer{
		Begin:  func(r *proxy.Runner) error { p.runner.Store(r); return nil },
		Synced: p.history.synced, Verified: p.history.verify,
	}
}

// SetLimits replaces the limits that the page shows beside the limits of its Runner: what a second Runner,
// which serves a part of the same Services, does not serve. The page keeps the list. It may be called
// from any goroutine.
func (p *Page) SetLimits(limits []*proxy.Problem) { p.history.setBeside(limits) }

// checkNode returns the problems of the node, if the Runner's Backend knows them.
func (p *Page) checkNode(s proxy.Snapshot) []*proxy.Problem {
	if r := p.runner.Load(); r != nil && !s.IsZero() {
		if check := r.Backend.Abilities().CheckNode; check != nil {
			return check(s)
		}
	}
	return nil
}

// ServeHTTP serves the page under any path: as HTML, or as JSON to a client that accepts
// application/json. The query has the parameters that the comment of the package lists.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := p.view(r.URL.Query())
	var body bytes.Buffer
	kind, status, encode := "text/html; charset=utf-8", http.StatusOK, func() error { return p.html.Execute(&body, v) }
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		kind, encode = "application/json", func() error { return json.NewEncoder(&body).Encode(v) }
		if v.Error != "" {
			status = http.StatusBadRequest
		}
	}
	if err := encode(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	w.WriteHeader(status)
	_, _ = io.Copy(w, &body) // The client notices a truncated response.
}

// view is what one response shows. Its fields, and the fields of the embedded structs, are the fields
// of the JSON.
type view struct {
	Title      string
	Generation uint64
	Node       *proxy.Node
	Query      query `json:"-"`
	Syncs      syncs
	Problems   []string
	Limits     []string
	Refused    []refusal
	listing
	answer
	Service *serviceView
}

func (p *Page) view(parameters url.Values) *view {
	q := newQuery(parameters)
	applied, state := p.history.state()
	if r := p.runner.Load(); r != nil {
		state.Watching, state.Resync = r.Watching(), r.ResyncInterval
	}
	s := applied.Applied
	v := &view{Title: p.title, Generation: s.Generation(), Node: s.Node(), Query: q, Syncs: state}
	if q.Service != "" {
		v.Service = p.service(q.Service, applied)
		return v
	}
	v.Problems = appendTexts(appendTexts(nil, slices.Values(p.checkNode(s))), s.Problems())
	v.Limits = appendTexts(nil, slices.Values(applied.Limits))
	v.Refused = refusals(applied)
	v.listing = list(s, q.Filter, q.Page)
	if v.Query.asks() {
		v.answer = v.Query.answer(s)
	}
	return v
}
