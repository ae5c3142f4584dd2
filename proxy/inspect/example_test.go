package inspect_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// A program keeps the last Sync with an Applied snapshot for the page.
func ExampleHandler() {
	var last atomic.Pointer[proxy.Sync]
	last.Store(&proxy.Sync{})
	runner := proxy.Runner{Observers: []proxy.Observer{{Synced: func(s proxy.Sync) {
		if !s.Applied.IsZero() {
			last.Store(&s)
		}
	}}}}
	page := inspect.Handler("my proxy", func() proxy.Sync { return *last.Load() })

	runner.Observers[0].Synced(proxy.Sync{Applied: proxy.NewSnapshot(&proxy.Node{Name: "node-1"})}) // as its Run does
	response := httptest.NewRecorder()
	page.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/services", http.NoBody))
	fmt.Println(strings.Contains(response.Body.String(), "Service ports of node node-1"))
	// Output: true
}
