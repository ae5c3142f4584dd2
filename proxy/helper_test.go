package proxy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

func objectName(name string) types.NamespacedName { return objects.Name("ns/" + name) }

func portName(service string) ServicePortName {
	return ServicePortName{NamespacedName: objectName(service), Port: "http", Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
}

type edit = objects.Edit

// apiService makes Service ns/name.
func apiService(name, clusterIP string, edits ...edit) *v1.Service {
	return objects.Service("ns/"+name, clusterIP, edits...)
}

// apiSlice makes EndpointSlice ns/name of a Service.
func apiSlice(name, service string, endpoints ...string) *discoveryv1.EndpointSlice {
	return objects.Slice("ns/"+name, service, endpoints...)
}

// newTestTracker returns a synced tracker for node here at 192.168.0.1 with pods in
// 10.0.0.0/8.
func newTestTracker(edits ...func(*TrackerOptions)) *ServiceChangeTracker {
	o := TrackerOptions{
		NodeName:      "here",
		NodeAddresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")},
		LocalTraffic:  LocalTraffic{Sources: prefixes("10.0.0.0/8")},
	}
	for _, e := range edits {
		e(&o)
	}
	t := NewServiceChangeTracker(o)
	t.Synced()
	return t
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// newest returns the tracker's current snapshot.
func newest(tb testing.TB, t Source) Snapshot {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	s, err := t.Next(ctx, Snapshot{})
	if err != nil {
		tb.Fatalf("Next: got error %v, want a snapshot", err)
	}
	return s
}

// get returns a port of a snapshot, or fails the test.
func get(tb testing.TB, s Snapshot, name ServicePortName) *ServicePort {
	tb.Helper()
	p, ok := s.Get(name)
	if !ok {
		tb.Fatalf("%s is not in the snapshot", name)
	}
	return p
}

// frontendText formats frontends: kind, address, and the allowed sources if restricted.
func frontendText(list []Frontend) []string {
	var out []string
	for _, f := range list {
		text := fmt.Sprintf("%s %s", f.Kind, f.Addr)
		if f.Restricted {
			text += fmt.Sprint(" ", f.AllowedSources)
		}
		out = append(out, text)
	}
	return out
}

func problemText(s Snapshot) []string {
	var out []string
	for p := range s.Problems() {
		out = append(out, p.Error())
	}
	return out
}

func snapshotNames(s Snapshot) []string {
	var out []string
	for p := range s.All() {
		out = append(out, p.Name.String())
	}
	return out
}

// portText formats a service port and everything it refers to.
func portText(p *ServicePort) string {
	if p == nil {
		return "none"
	}
	flat := *p
	flat.Cluster, flat.Local = nil, nil
	text := fmt.Sprintf("%+v", flat)
	for _, pool := range [...]Pool{PoolCluster, PoolLocal} {
		text += fmt.Sprintf(" %s:", pool)
		for _, e := range p.Pool(pool) {
			text += fmt.Sprintf(" %+v", *e)
		}
	}
	return text
}

// fingerprint is a hash of a snapshot and everything it refers to.
func fingerprint(s Snapshot) [sha256.Size]byte {
	h := sha256.New()
	h.Write(fmt.Appendf(nil, "%d %+v %q\n", s.Generation(), s.Node(), problemText(s)))
	for p := range s.All() {
		h.Write(fmt.Appendf(nil, "%s\n", portText(p)))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// differences describes how two snapshots differ in content.
func differences(got, want Snapshot) []string {
	var out []string
	if !got.Node().Equal(want.Node()) {
		out = append(out, fmt.Sprintf("node: got %+v, want %+v", got.Node(), want.Node()))
	}
	if g, w := problemText(got), problemText(want); !slices.Equal(g, w) {
		out = append(out, fmt.Sprintf("problems:\n got %s\nwant %s", strings.Join(g, "\n     "), strings.Join(w, "\n     ")))
	}
	for p := range want.All() {
		if g, ok := got.Get(p.Name); !ok || !g.Equal(p) {
			out = append(out, fmt.Sprintf("%s:\n got %s\nwant %s", p.Name, portText(g), portText(p)))
		}
	}
	for p := range got.All() {
		if _, ok := want.Get(p.Name); !ok {
			out = append(out, fmt.Sprintf("%s: got %s, want none", p.Name, portText(p)))
		}
	}
	return out
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
