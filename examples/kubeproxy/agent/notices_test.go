package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

func newAnnouncer(t *testing.T) *instance {
	t.Helper()
	a := &instance{mode: nftablesMode, log: logr.Discard(), serving: true, cleaned: true}
	a.tracker.NodeName = "node-1"
	a.reported.events = idleEvents(t)
	return a
}

// only returns the only notice of a source.
func (a *instance) only(t *testing.T, source string) notice {
	t.Helper()
	if n := len(a.reported.events.notices[source]); n != 1 {
		t.Fatalf("%s: got %d notices, want one", source, n)
	}
	for _, n := range a.reported.events.notices[source] {
		return *n
	}
	return notice{}
}

func problem(kind, namespace, name, text string) *proxy.Problem {
	return &proxy.Problem{Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, Field: "spec", Err: errors.New(text)}
}

// TestNotices checks that problems of a Service make one notice, which names all that have room, and that
// problems of other objects make none.
func TestNotices(t *testing.T) {
	t.Parallel()
	all := notices(fieldIgnored, "Advice.", []*proxy.Problem{
		problem("EndpointSlice", "a", "slice", "x"), problem("Node", "", "node-1", "x"),
		problem("Service", "a", "s", "one"), problem("Service", "a", "s", "one"), problem("Service", "a", "s", "two"), problem("Service", "b", "s", "three"),
	})
	many := []*proxy.Problem{problem("Service", "a", "s", "one")}
	for i := range maxNamespaceEvents {
		many = append([]*proxy.Problem{problem("EndpointSlice", "a", fmt.Sprint(i), "x")}, many...)
	}
	if got := notices(fieldIgnored, "", many); len(got) != 1 {
		t.Errorf("beside many EndpointSlices: got %d notices, want one", len(got))
	}
	if len(all) != 2 || all[0].note != "spec: one; spec: two. Advice." || all[1].note != "spec: three. Advice." || all[0].eventType != v1.EventTypeWarning {
		t.Errorf("got %+v, want one for each Service", all)
	}
}

// TestNoticesAreBounded checks the bounds of the text, and of the notices of a namespace.
func TestNoticesAreBounded(t *testing.T) {
	t.Parallel()
	var many []*proxy.Problem
	for i := range maxNote {
		many = append(many, problem("Service", "a", "s", strings.Repeat("ä", i)))
	}
	for i := range many {
		for _, n := range notices(fieldIgnored, strings.Repeat("x", 200), many[i:]) {
			if len(n.note) > maxNote || !utf8.ValidString(n.note) || i < len(many)-1 && !strings.Contains(n.note, "; and ") && len(many)-i > 100 {
				t.Fatalf("problems from %d on: got %d bytes %q, want at most %d in UTF-8", i, len(n.note), n.note, maxNote)
			}
		}
	}
	many = nil
	for _, namespace := range []string{"a", "b"} {
		for i := range maxNamespaceEvents + 5 {
			many = append(many, problem("Service", namespace, fmt.Sprintf("s%03d", i), "x"))
		}
	}
	if got := notices(fieldIgnored, "", many); len(got) != 2*maxNamespaceEvents || got[maxNamespaceEvents].Namespace != "b" {
		t.Errorf("two namespaces with many: got %d notices, want %d of each", len(got), maxNamespaceEvents)
	}
}

// TestRefusedPorts checks the notice about ports that the kernel refuses: one for a Service, as long as
// the same ports are refused.
func TestRefusedPorts(t *testing.T) {
	t.Parallel()
	a := newAnnouncer(t)
	port := func(name string) proxy.ServicePortName {
		return proxy.ServicePortName{NamespacedName: types.NamespacedName{Namespace: "a", Name: "s"}, Port: name, Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
	}
	refused := proxy.PortErrors{port(""): errors.New("no room"), port("web"): errors.New("no buffer")}
	a.synced(t.Context(), proxy.Sync{Err: refused, Refused: refused})
	first := a.only(t, notProgrammed)
	const want = "port without name/TCP/IPv4: no room; port web/TCP/IPv4: no buffer. Node node-1 serves"
	if !strings.HasPrefix(first.note, want) || first.reason != "NotProgrammed" {
		t.Errorf("got %+v, want a note that begins with %s", first, want)
	}
	synced := first.reported
	time.Sleep(20 * time.Millisecond) // No clock of Windows ticks more slowly, so a new report has another time.
	other := proxy.PortErrors{port(""): errors.New("0x2"), port("web"): errors.New("0x3")}
	for _, s := range []proxy.Sync{{Err: other, Refused: other}, {Err: errors.New("no kernel")}} {
		a.synced(t.Context(), s)
		if n := a.only(t, notProgrammed); !n.reported.Equal(synced) || !strings.HasPrefix(n.note, "port without name/TCP/IPv4: 0x2; port web/TCP/IPv4: 0x3. ") {
			t.Errorf("after %v: got %+v, want the first one, reported once, with the latest errors", s.Err, n)
		}
	}
	delete(other, port("web"))
	if a.synced(t.Context(), proxy.Sync{Err: other, Refused: other}); a.only(t, notProgrammed).reported.Equal(synced) {
		t.Error("other ports: got the notice that is reported, want a new one")
	}
	a.synced(t.Context(), proxy.Sync{})
	if n := len(a.reported.events.notices[notProgrammed]); n != 0 {
		t.Errorf("after success: got %d notices, want none", n)
	}
}

// TestLimitNotices checks that limits have notices until they end.
func TestLimitNotices(t *testing.T) {
	t.Parallel()
	a := newAnnouncer(t)
	applied := proxy.NewSnapshot(&proxy.Node{Name: "node-1"})
	limit := &proxy.Problem{Kind: "Service", NamespacedName: types.NamespacedName{Namespace: "a", Name: "s"}, Field: "spec.sessionAffinity", Err: errors.New("few clients")}
	a.synced(t.Context(), proxy.Sync{Applied: applied, Limits: []*proxy.Problem{limit}})
	if n := a.only(t, servedWithLimits); !strings.HasPrefix(n.note, "spec.sessionAffinity: few clients. The Service is served") {
		t.Errorf("got %+v", n)
	}
	a.synced(t.Context(), proxy.Sync{}) // nothing is known
	a.only(t, servedWithLimits)
	other := *limit
	other.Name = "t"
	a.synced(t.Context(), proxy.Sync{Applied: applied, Limits: []*proxy.Problem{limit, limit, &other}})
	if n := a.only(t, servedWithLimits); n.kind != "Node" || !strings.HasPrefix(n.note, "spec.sessionAffinity: few clients. 2 Services, such as a/s, are served") {
		t.Errorf("the same limit of two Services: got %+v, want a notice of the node", n)
	}
	a.synced(t.Context(), proxy.Sync{Applied: applied})
	if n := len(a.reported.events.notices[servedWithLimits]); n != 0 {
		t.Errorf("after the limit has ended: got %d notices, want none", n)
	}
}

// TestServerNotices checks the notices about servers, with kube-proxy's reasons, and the start.
func TestServerNotices(t *testing.T) {
	t.Parallel()
	for service, want := range map[types.NamespacedName]cause{
		{}:                          {kind: "Node", NamespacedName: types.NamespacedName{Name: "node-1"}, reason: "FailedToStartProxierHealthcheck"},
		{Name: "127.0.0.1:10249"}:   {kind: "Node", NamespacedName: types.NamespacedName{Name: "node-1"}, reason: "FailedToStartMetricServer"},
		{Namespace: "a", Name: "s"}: {kind: "Service", NamespacedName: types.NamespacedName{Namespace: "a", Name: "s"}, reason: "FailedToStartServiceHealthcheck"},
	} {
		a := newAnnouncer(t)
		a.announceServer(service, errors.New("in use"))
		if n := a.only(t, listening); n.cause != want || !strings.Contains(n.note, "node node-1") || !strings.Contains(n.note, "in use") {
			t.Errorf("%v: got %+v, want %+v", service, n, want)
		}
		if a.announceServer(service, nil); len(a.reported.events.notices[listening]) != 0 {
			t.Errorf("%v: listening again: got a notice, want none", service)
		}
	}
	a := newAnnouncer(t)
	a.announceStart()
	if n := a.only(t, starting); n.reason != "Starting" || n.action != "StartKubeProxy" || n.eventType != v1.EventTypeNormal || n.kind != "Node" {
		t.Errorf("start: got %+v", n)
	}
}
