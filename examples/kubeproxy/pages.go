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

// pages gives what is served beside the health checks.
func (a *agent) pages(registry *prometheus.Registry, checks ...check) http.Handler {
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			_, _ = fmt.Fprint(w, body) // Who asked notices what is missing.
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", inTurn(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
	mux.Handle("/proxyMode", text(a.mode))
	mux.Handle("/healthz", text("ok"))
	mux.Handle("/debug/", a.localOnly(a.debugPages(checks)))
	return mux
}

// maxAtOnce is how many answers are made at once of a kind that takes time and room.
const maxAtOnce = 10

// inTurn has a few answers made at once, and the others wait. Each is whole before the
// first byte of it is sent: those who read slowly keep nobody waiting.
func inTurn(h http.Handler) http.Handler {
	turns := make(chan struct{}, maxAtOnce)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case turns <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		whole := draft{header: w.Header(), status: http.StatusOK}
		func() {
			defer func() { <-turns }()
			h.ServeHTTP(&whole, r)
		}()
		w.WriteHeader(whole.status)
		_, _ = whole.body.WriteTo(w) // Who asked notices what is missing.
	})
}

// draft is an answer that is not sent yet.
type draft struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (d *draft) Header() http.Header { return d.header }

func (d *draft) WriteHeader(status int) { d.status = status }

func (d *draft) Write(b []byte) (int, error) { return d.body.Write(b) }

// check looks for what is wrong beside the objects.
type check = func(proxy.Snapshot) []*proxy.Problem

// nodeChecks gives the look that a backend takes at the node, if it does.
func nodeChecks(b proxy.Backend) []check {
	if c, can := b.(backends.NodeChecker); can {
		return []check{c.CheckNode}
	}
	return nil
}

// debugPages gives the pages that show more than everybody may see, or take more
// time than everybody may have.
func (a *agent) debugPages(checks []check) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /debug/services", inspect.Handler("Mode "+a.mode, func() (s proxy.Snapshot) {
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

// localOnly answers clients on this machine alone: the metrics beside are often open
// to the network. Pages of other sites, in a browser on this machine, are no such client.
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
		// Profiles take longer than other pages may; without a deadline for what
		// is read, nothing ends them early.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		h.ServeHTTP(w, r)
	})
}

// foreign says why a request may come from a page of another site. A site may have its
// own name lead to this machine, and read the answer then, but no name of the node's, and
// no address.
func (a *agent) foreign(r *http.Request) error {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	_, err := netip.ParseAddr(host)
	if err != nil && host != "localhost" && (host == "" || host != a.tracker.NodeName) {
		return fmt.Errorf("the host of the URL is an IP address, localhost or the name of the node, not %q", r.Host)
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site == "cross-site" || site == "same-site" {
		return errors.New("not for pages of other sites: open the URL itself")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return fmt.Errorf("not for pages of other sites, such as %q: open the URL itself", origin)
		}
	}
	return nil
}
