package inspect_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// A program serves the page of its Runner to clients on the node.
func Example() {
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	page := inspect.New("my proxy")
	runner := proxy.Runner{Source: tracker, Observers: []proxy.Observer{page.Observer(tracker)}}
	handler := inspect.LocalOnly(page, "node-1")

	applied := proxy.NewSnapshot(&proxy.Node{Name: "node-1"})
	runner.Observers[0].Synced(proxy.Sync{Applied: applied, Start: time.Now()}) // as its Run does
	request := httptest.NewRequest(http.MethodGet, "http://localhost/services", http.NoBody)
	request.RemoteAddr = "127.0.0.1:40000"
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, request)
	fmt.Println(strings.Contains(response.Body.String(), "Service ports of node node-1"))
	// Output: true
}
