package iptables

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// What tells pods becomes a match that iptables takes, or a reason why not.
func TestInterfacesOfPods(t *testing.T) {
	o, err := Options{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	longest := strings.Repeat("x", longestInterface)
	for _, c := range []struct {
		name, prefix string
		want         []string
	}{
		{"cni0", "", []string{"-i cni0 "}},
		{"", "veth", []string{"-i veth+ "}},
		{longest, longest[1:], []string{"-i " + longest + " ", "-i " + longest[1:] + "+ "}},
		{"", longest, []string{"-i " + longest + " "}},
		{longest + "x", "", nil},
		{"", "-j", nil},
		{"a b", "", nil},
		{"", "a\nCOMMIT", nil},
		{"a\" -j DROP", "", nil},
		{"a+", "", nil},
		{"é", "", nil},
	} {
		node := &proxy.Node{}
		node.LocalTraffic = proxy.LocalTraffic{Interface: c.name, InterfacePrefix: c.prefix}
		p := newRenderer(o, v1.IPv4Protocol).page(node)
		if (p.err != nil) != (c.want == nil) || p.err == nil && !slices.Equal(p.pods, c.want) {
			t.Errorf("interface %q, prefix %q: got %q and error %v, want %q", c.name, c.prefix, p.pods, p.err, c.want)
		}
	}
}
