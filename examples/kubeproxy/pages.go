package main

import (
	"fmt"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// pages gives what is served beside the health checks.
func (a *agent) pages(registry *prometheus.Registry) http.Handler {
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = fmt.Fprint(w, body) // Who asked notices what is missing.
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 10}))
	mux.Handle("/proxyMode", text(a.mode))
	mux.Handle("/healthz", text("ok"))
	mux.Handle("/debug/", localOnly(a.debugPages()))
	return mux
}

// debugPages gives the pages that show more than everybody may see, or take more
// time than everybody may have.
func (a *agent) debugPages() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /debug/services", inspect.Handler("Mode "+a.mode, func() (s proxy.Snapshot) {
		if latest := a.latest.Load(); latest != nil {
			s = *latest
		}
		return s
	}))
	if a.EnableProfiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// localOnly answers clients on this machine alone: the metrics beside are often open
// to the network.
func localOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "only for clients on this node", http.StatusForbidden)
			return
		}
		// Profiles take longer than other pages may; without a deadline for what
		// is read, nothing ends them early.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		h.ServeHTTP(w, r)
	})
}
