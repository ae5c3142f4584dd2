package agent

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/vipkit/vipkit/proxy/inspect"
)

// path is what the program serves at a path of the address of the metrics.
type path struct {
	At      string
	Help    string // a sentence
	handler http.Handler
	// Local restricts it to clients on the node: it shows Services or how the node is set up, or
	// needs much time.
	Local bool
}

// pages serves the paths besides the health checks.
func (a *instance) pages(registry *prometheus.Registry) http.Handler {
	mux, all := http.NewServeMux(), a.paths(registry)
	for _, p := range all {
		if p.Local {
			p.handler = inspect.LocalOnly(withoutDeadline(p.handler), a.tracker.NodeName)
		}
		mux.Handle(p.At, p.handler)
	}
	mux.Handle("/{$}", index("kubeproxy, mode "+a.mode, all))
	return mux
}

// index lists paths.
func index(title string, all []path) http.Handler {
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n", title)
	lines := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, p := range all {
		only := ""
		if p.Local {
			only = " Only for clients on this node."
		}
		_, _ = fmt.Fprintf(lines, "%s\t%s%s\n", p.At, p.Help, only) // A builder has no errors.
	}
	_ = lines.Flush()
	return plainText(text.String())
}

// paths returns all paths, in the order of the index.
func (a *instance) paths(registry *prometheus.Registry) []path {
	all := []path{
		{At: "/metrics", Help: "Metrics for Prometheus.", handler: inTurn(promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, registry}, promhttp.HandlerOpts{}))},
		{At: "/healthz", Help: "Whether this server answers; /healthz at the port of the health checks says whether Services are served.", handler: plainText("ok")},
		{At: "/proxyMode", Help: "The mode.", handler: plainText(a.mode)},
	}
	if a.enabled(statuszGate) {
		all = append(all, path{At: statuszPath, Help: "Version, time of the start, and paths.", handler: a.statusz(time.Now())})
	}
	all = append(all, path{At: configzPath, Help: "The configuration in effect, as JSON.", handler: http.HandlerFunc(a.configz), Local: true})
	if a.enabled(flagzGate) {
		all = append(all, path{At: flagzPath, Help: "The flags with the values in effect.", handler: a.flagz(), Local: true})
	}
	all = append(all, path{At: "/debug/services", Help: "What is served, and where a packet goes and why.", handler: a.page, Local: true})
	if a.EnableProfiling {
		all = append(all, path{At: "/debug/pprof/", Help: "Profiles of the program.", handler: profiles(), Local: true})
	}
	return all
}

// plainText serves a text.
func plainText(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { respond(w, "text/plain; charset=utf-8", []byte(text)) })
}

// respond sends a whole response.
func respond(w http.ResponseWriter, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // The client notices a truncated response.
}

const (
	// maxAtOnce is how many responses that need time and memory are made at once.
	maxAtOnce = 10
	// longestTurn bounds the wait for such a response.
	longestTurn = time.Minute
)

// inTurn makes at most maxAtOnce responses at once; further requests wait. A response is
// complete before its first byte is sent, so a client that reads slowly blocks no other.
func inTurn(h http.Handler) http.Handler {
	turns := make(chan struct{}, maxAtOnce)
	return http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	}), longestTurn, "too many requests")
}

// profiles serves profiles below /debug/pprof/.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// withoutDeadline clears the server's read deadline: profiles take longer, and would end early.
func withoutDeadline(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		h.ServeHTTP(w, r)
	})
}
