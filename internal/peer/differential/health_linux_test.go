package differential

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kube "k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
)

const (
	patience     = time.Minute
	noConnection = "no connection"
)

// loopback returns the address at which both sides listen, each in a namespace of its own.
func loopback(family v1.IPFamily) netip.Prefix {
	if family == v1.IPv4Protocol {
		return netip.MustParsePrefix("127.0.0.1/32")
	}
	return netip.MustParsePrefix("::1/128")
}

// TestHealthCheckNodePorts compares the responses of health check node ports after every step
// of random histories: status, headers and body, byte for byte.
func TestHealthCheckNodePorts(t *testing.T) {
	r, d := testenv.Random(t), newDecisions()
	kubeNS, ourNS := netnstest.NewNS(t), netnstest.NewNS(t)
	answers := map[string]int{}
	for number := range 150 {
		g := newGenerator(rand.New(rand.NewPCG(r.Uint64(), 0)))
		g.Balanced = true
		h := newHealthHistory(t, g, d, [2]*netns.NS{kubeNS, ourNS})
		for step := range 8 {
			for range 3 {
				g.change(h.kube, h.ours)
			}
			h.sync(t)
			if diff := h.compare(t, answers); diff != "" {
				t.Fatalf("history %d differs after step %d:\n%s\nchanges:\n%s", number, step, diff, g.changeLog())
			}
		}
		h.end()
	}
	t.Logf("answers: %v", answers)
	for _, first := range []string{"HTTP/1.1 200 OK", "HTTP/1.1 503 Service Unavailable", noConnection} {
		if answers[first] == 0 {
			t.Errorf("responses %q: got none, want some of each: %v", first, answers)
		}
	}
	reportDecisions(t, d, "unservedPorts", "bothFamilies")
}

// healthHistory is a history with the servers of both sides.
type healthHistory struct {
	*generator
	kube   *kubeProxy
	ours   *vipkit
	spaces [2]*netns.NS // kube-proxy's and ours
	// servers are the servers of kube-proxy, one for each family.
	servers  map[v1.IPFamily]healthcheck.ServiceHealthServer
	checker  *healthcheck.ProxyHealthServer
	observer proxy.Observer
	// isBehind says that both sides have changes that are not applied.
	isBehind bool
	end      func()
}

func newHealthHistory(t *testing.T, g *generator, d *decisions, spaces [2]*netns.NS) *healthHistory {
	t.Helper()
	h := &healthHistory{generator: g, kube: newKubeProxy(d), spaces: spaces, servers: map[v1.IPFamily]healthcheck.ServiceHealthServer{}, isBehind: g.Chance(4)}
	h.checker = healthcheck.NewProxyHealthServer("", 0, &node{})
	nodePorts := proxy.NodePortAddresses{}
	for _, f := range families() {
		nodePorts.Prefixes = append(nodePorts.Prefixes, loopback(f))
		within(t, spaces[0], func() error {
			at := proxyutil.NewNodePortAddresses(f, []string{loopback(f).String()})
			h.servers[f] = healthcheck.NewServiceHealthServer(nodeName, nil, at, h.checker, f)
			return nil
		})
	}
	h.ours = newVipkit(proxy.TrackerOptions{NodePortAddresses: nodePorts})
	server, err := health.New(health.Options{Timeout: 2})
	testenv.NoError(t, err)
	h.observer = server.Observer()
	testenv.NoError(t, h.observer.Begin(&proxy.Runner{Source: h.ours.tracker, ResyncInterval: 1}))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		within(t, spaces[1], func() error { server.Run(ctx); return nil })
	})
	h.end = func() {
		cancel()
		running.Wait()
		for _, s := range h.servers {
			_ = s.SyncServices(nil) // It never returns an error.
		}
	}
	return h
}

func within(t *testing.T, ns *netns.NS, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Error(err)
	}
}

// sync applies all changes on both sides.
func (h *healthHistory) sync(t *testing.T) {
	t.Helper()
	h.kube.sync()
	h.ours.sync()
	e := h.kube.expectation(h.cluster, h.ours, false)
	for _, f := range families() {
		within(t, h.spaces[0], func() error { return h.servers[f].SyncServices(h.kube.perFamily[f].services.HealthCheckNodePorts()) })
		within(t, h.spaces[0], func() error { return h.servers[f].SyncEndpoints(unservedPorts(e, f)) })
		h.checker.Updated(f)
	}
	h.observer.Synced(proxy.Sync{Snapshot: h.ours.snapshot, Applied: h.ours.snapshot, Start: time.Now()})
	if h.isBehind {
		h.checker.QueuedUpdate(v1.IPv4Protocol)
		h.observer.Started(proxy.Sync{Snapshot: h.ours.snapshot, Start: time.Now()})
	}
}

// unservedPorts does not count endpoints of ports that the Service does not have, as no
// client can reach them. kube-proxy counts them.
func unservedPorts(e *expectation, family v1.IPFamily) map[types.NamespacedName]int {
	all, served := kube.EndpointsMap{}, kube.EndpointsMap{}
	for name, list := range e.endpoints {
		if name.Family != family {
			continue
		}
		key := kube.ServicePortName{NamespacedName: name.NamespacedName, Port: name.Port, Protocol: name.Protocol}
		for _, r := range list {
			all[key] = append(all[key], r)
		}
		if e.ports[name] != nil {
			served[key] = all[key]
		}
	}
	counts := served.LocalReadyEndpoints()
	for name, n := range all.LocalReadyEndpoints() {
		if counts[name] != n {
			e.countUse("unservedPorts", 1)
		}
	}
	return counts
}

// compare sends requests to all ports that a Service may have, also to those that it does
// not have. It counts the responses by their first line.
func (h *healthHistory) compare(t *testing.T, answers map[string]int) (diff string) {
	t.Helper()
	for _, namespace := range []string{"north", "south"} {
		for _, name := range []string{"a", "b", "c"} {
			port := objects.HealthCheckNodePort(namespace, name)
			for _, f := range families() {
				at := netip.AddrPortFrom(loopback(f).Addr(), uint16(port)).String()
				theirs := netip.AddrPortFrom(loopback(h.bothFamilies(types.NamespacedName{Namespace: namespace, Name: name}, f)).Addr(), uint16(port)).String()
				request := objects.OneOf(h.Rand, "GET / HTTP/1.1", "GET /healthz?x=1 HTTP/1.1", "POST /any/thing HTTP/1.1", "HEAD / HTTP/1.0")
				want := ask(t, h.spaces[0], theirs, request)
				got := ask(t, h.spaces[1], at, request)
				// Our server starts and stops its listeners with a delay.
				for deadline := time.Now().Add(patience); got != want && time.Now().Before(deadline); got = ask(t, h.spaces[1], at, request) {
					<-time.After(5 * time.Millisecond)
				}
				if got != want {
					return fmt.Sprintf("%s to %s of %s/%s\nwant %q\ngot  %q", request, at, namespace, name, want, got)
				}
				first, _, _ := strings.Cut(want, "\r\n")
				answers[first]++
			}
		}
	}
	return ""
}

// bothFamilies gives the family of the request to kube-proxy. In this repository the port of a
// Service of one family answers in the other family, too, for clients that only have that one;
// kube-proxy's does not.
func (h *healthHistory) bothFamilies(name types.NamespacedName, asked v1.IPFamily) v1.IPFamily {
	hasOne := func(f v1.IPFamily) bool { return h.kube.perFamily[f].services.HealthCheckNodePorts()[name] != 0 }
	for _, other := range families() {
		if other != asked && !hasOne(asked) && hasOne(other) {
			h.kube.countUse("bothFamilies", 1)
			return other
		}
	}
	return asked
}

// ask sends a request and gives the response without its date, or the reason why there is
// none.
func ask(t *testing.T, ns *netns.NS, address, request string) string {
	t.Helper()
	var conn net.Conn
	err := ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", address, patience)
		return err
	})
	if err != nil {
		return noConnection
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(conn, "%s\r\nHost: node\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", request); err != nil {
		return err.Error()
	}
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	response.Header.Del("Date")
	text, err := httputil.DumpResponse(response, true)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
