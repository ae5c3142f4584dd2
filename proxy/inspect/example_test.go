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

// A program keeps what its dataplane holds, and lets the page show it.
func ExampleHandler() {
	var held atomic.Pointer[proxy.Snapshot]
	held.Store(&proxy.Snapshot{})
	runner := proxy.Runner{Observe: func(s proxy.Sync) { held.Store(&s.Applied) }}
	page := inspect.Handler("my proxy", func() proxy.Snapshot { return *held.Load() })

	runner.Observe(proxy.Sync{Applied: proxy.NewSnapshot(&proxy.Node{Name: "node-1"})}) // as its Run does
	answer := httptest.NewRecorder()
	page.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/services", http.NoBody))
	fmt.Println(strings.Contains(answer.Body.String(), "Service ports of node node-1"))
	// Output: true
}
