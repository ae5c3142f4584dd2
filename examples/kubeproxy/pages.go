package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
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
	mux.HandleFunc("GET /debug/services", a.debugPage)
	if a.serving.profiling {
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
		h.ServeHTTP(w, r)
	})
}

// servePages serves until ctx ends. An address that cannot be had is tried again:
// the one who has it may be the program that this one takes the place of.
func servePages(ctx context.Context, address string, h http.Handler, log logr.Logger) {
	told := ""
	for ctx.Err() == nil {
		err := listenAndServe(ctx, address, h)
		if err != nil && ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			log.Error(err, "metrics cannot be served")
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
}

func listenAndServe(ctx context.Context, address string, h http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
