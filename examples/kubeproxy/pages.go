package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vipkit/vipkit/proxy/inspect"
)

// pagesAt returns the handler of the pages at an address, or nothing without one.
func (a *agent) pagesAt(address string, registry *prometheus.Registry) map[string]http.Handler {
	if address == "" {
		return nil
	}
	return map[string]http.Handler{address: a.pages(registry)}
}

// pages serves the paths besides the health checks.
func (a *agent) pages(registry *prometheus.Registry) http.Handler {
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = fmt.Fprint(w, body) // The client notices a truncated response.
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", inTurn(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.Handle("/proxyMode", text(a.mode))
	mux.Handle("/healthz", text("ok"))
	mux.Handle("/debug/", a.debugPages())
	return mux
}

// maxAtOnce is how many responses that need time and memory are made at once.
const maxAtOnce = 10

// inTurn makes at most maxAtOnce responses at once; further requests wait. A response is
// complete before its first byte is sent, so a client that reads slowly blocks no other.
func inTurn(h http.Handler) http.Handler {
	turns := make(chan struct{}, maxAtOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		whole := bufferedResponse{header: w.Header(), status: http.StatusOK}
		func() {
			defer func() { <-turns }()
			h.ServeHTTP(&whole, r)
		}()
		w.WriteHeader(whole.status)
		_, _ = whole.body.WriteTo(w) // The client notices a truncated response.
	})
}

// bufferedResponse is a response that is not sent yet.
type bufferedResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (d *bufferedResponse) Header() http.Header { return d.header }

func (d *bufferedResponse) WriteHeader(status int) { d.status = status }

func (d *bufferedResponse) Write(b []byte) (int, error) { return d.body.Write(b) }

// debugPages serves the pages for clients on the node only: they show Services, or need much
// time.
func (a *agent) debugPages() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /debug/services", a.page)
	if a.EnableProfiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return inspect.LocalOnly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Profiles take longer than the server's read deadline, which would end them early.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		mux.ServeHTTP(w, r)
	}), a.tracker.NodeName)
}
