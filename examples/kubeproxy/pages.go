package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/inspect"
)

// pages serves the paths besides the health checks.
func (a *agent) pages(registry *prometheus.Registry, checks ...check) http.Handler {
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
	mux.Handle("/debug/", a.localOnly(a.debugPages(checks)))
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

// check returns problems of the node.
type check = func(proxy.Snapshot) []*proxy.Problem

// nodeChecks returns the node check of a backend, if it has one.
func nodeChecks(b proxy.Backend) []check {
	if c, can := b.(backends.NodeChecker); can {
		return []check{c.CheckNode}
	}
	return nil
}

// debugPages serves the pages for clients on the node only: they show Services, or need much
// time.
func (a *agent) debugPages(checks []check) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /debug/services", inspect.Handler("Mode "+a.mode, func() (s proxy.Sync) {
		if latest := a.latest.Load(); latest != nil {
			s = *latest
		}
		return s
	}, checks...))
	if a.EnableProfiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// localOnly serves only clients on this node, as the metrics at the same port are often open
// to the network. It refuses requests from pages of other sites in a browser on this node.
func (a *agent) localOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !from.Addr().Unmap().IsLoopback() {
			http.Error(w, "only for clients on this node", http.StatusForbidden)
			return
		}
		if err := a.foreign(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		// Profiles take longer than the server's read deadline, which would end them early.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		h.ServeHTTP(w, r)
	})
}

// foreign returns an error if a request may come from a page of another site. A site can
// resolve its own name to this node, and then read the response, but it can use neither the
// name of the node nor an IP address.
func (a *agent) foreign(r *http.Request) error {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	_, err := netip.ParseAddr(host)
	if err != nil && host != "localhost" && (host == "" || host != a.tracker.NodeName) {
		return fmt.Errorf("host of the URL %q: want an IP address, localhost or the name of the node", r.Host)
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return errors.New("not for pages of other sites: open the URL directly")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return fmt.Errorf("not for pages of other sites, such as %q: open the URL directly", origin)
		}
	}
	return nil
}
