package nodecheck

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

// at gives a snapshot of a node with some addresses, and pods from some ranges.
func at(addrs, pods string) proxy.Snapshot {
	n := &proxy.Node{Name: "node"}
	for a := range strings.FieldsSeq(addrs) {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	for p := range strings.FieldsSeq(pods) {
		n.LocalTraffic.Sources = append(n.LocalTraffic.Sources, netip.MustParsePrefix(p))
	}
	return proxy.NewSnapshot(n)
}

// behind gives a snapshot of a node whose pods are told by their interface.
func behind(bridge, prefix string) proxy.Snapshot {
	n := *at(dual, "").Node()
	n.LocalTraffic.Interface, n.LocalTraffic.InterfacePrefix = bridge, prefix
	return proxy.NewSnapshot(&n)
}

const dual, pods = "192.0.2.1 2001:db8::1", "10.1.0.0/16 fd00:1::/32"

// setUp makes a node that forwards, with a bridge for pods. What it makes besides is for
// the single tests.
func setUp(t *testing.T, hairpin bool) *netns.NS {
	t.Helper()
	n := netnstest.NewNS(t)
	pod := netnstest.NewNS(t)
	for _, err := range []error{
		n.Forward(),
		n.AddBridge("cni0"),
		netns.Link(netns.End{NS: n, Name: "port"}, netns.End{NS: pod, Name: "eth0"}),
		n.AddPort("cni0", "port", hairpin),
		n.AddAddress("cni0", netip.MustParsePrefix("10.1.0.1/24")),
		n.AddAddress("cni0", netip.MustParsePrefix("fd00:1::1/64")),
		n.AddBridge("unused0"),
		n.AddAddress("unused0", netip.MustParsePrefix("10.1.7.1/24")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// found gives the settings that are found, with their values.
func found(t *testing.T, n *netns.NS, check func(proxy.Snapshot) []*proxy.Problem, s proxy.Snapshot) (all []string) {
	t.Helper()
	err := n.Do(func() error {
		for _, p := range check(s) {
			all = append(all, text(t, p))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// text gives a setting with its value.
func text(t *testing.T, p *proxy.Problem) string {
	t.Helper()
	f, ok := errors.AsType[*finding](p.Err)
	if !ok || f.consequence == "" || f.remedy == "" || p.Kind != "Node" {
		t.Errorf("problem %v lacks a part", p)
	}
	return p.Field + " " + f.value
}

const (
	forward4, forward6 = "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"
	calls4, calls6     = "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"
	markedSources      = "net.ipv4.conf.all.src_valid_mark"
)

// Each setting is found where it matters, and nowhere else.
func TestFindings(t *testing.T) {
	for _, c := range []struct {
		what    string
		hairpin bool
		sysctls map[string]string
		check   func(proxy.Snapshot) []*proxy.Problem
		of      proxy.Snapshot
		want    []string
	}{
		{"all is well", true, nil, Translation, at(dual, pods), nil},
		{"no forwarding", true, map[string]string{forward4: "0", forward6: "0"}, Translation, at(dual, pods), []string{forward4 + " 0", forward6 + " 0"}},
		{"no forwarding of another family", true, map[string]string{forward6: "0"}, Translation, at("192.0.2.1", pods), nil},
		{"no forwarding, addresses unknown", true, map[string]string{forward6: "0"}, Translation, at("", pods), []string{forward6 + " 0"}},
		{"no forwarding, nothing known", true, map[string]string{forward4: "0"}, Translation, proxy.Snapshot{}, []string{forward4 + " 0"}},
		{"unfiltered bridge", true, map[string]string{calls4: "0", calls6: "0"}, Translation, at(dual, pods), []string{calls4 + " 0", calls6 + " 0"}},
		{"unfiltered bridge, IPv6 only", true, map[string]string{calls4: "0", calls6: "0"}, Translation, at("2001:db8::1", pods), []string{calls6 + " 0"}},
		{"unfiltered bridge of others", true, map[string]string{calls4: "0"}, Translation, at(dual, "10.9.0.0/16"), nil},
		{"unfiltered bridge, pods unknown", true, map[string]string{calls4: "0"}, Translation, at(dual, ""), []string{calls4 + " 0"}},
		{"unfiltered bridge, pods behind it", true, map[string]string{calls4: "0"}, Translation, behind("cni0", ""), []string{calls4 + " 0"}},
		{"unfiltered bridge, pods behind its name", true, map[string]string{calls4: "0"}, Translation, behind("", "cni"), []string{calls4 + " 0"}},
		{"unfiltered bridge, pods elsewhere", true, map[string]string{calls4: "0"}, Translation, behind("cbr0", "veth"), nil},
		{"no hairpin", false, nil, Translation, at(dual, pods), []string{"hairpin_mode of cni0 off"}},
		{"no hairpin of others", false, nil, Translation, at(dual, "10.9.0.0/16"), nil},
		{"no hairpin, not needed", false, map[string]string{calls4: "0", calls6: "0"}, Translation, at(dual, pods), []string{calls4 + " 0", calls6 + " 0"}},
		{"no hairpin, needed in one family", false, map[string]string{calls6: "0"}, Translation, at(dual, pods), []string{calls6 + " 0", "hairpin_mode of cni0 off"}},
		{"marks of sources", true, map[string]string{markedSources: "1"}, Translation, at(dual, pods), nil},
		{"marks of sources, captured", true, map[string]string{markedSources: "1"}, Capture, at(dual, pods), []string{markedSources + " 1"}},
		{"marks of sources, IPv6 only", true, map[string]string{markedSources: "1"}, Capture, at("2001:db8::1", pods), nil},
		{"captured, all else", false, map[string]string{forward4: "0", forward6: "0", calls4: "0", calls6: "0"}, Capture, at(dual, pods), nil},
	} {
		n := setUp(t, c.hairpin)
		for name, value := range c.sysctls {
			if err := n.Sysctl(strings.ReplaceAll(name, ".", "/"), value); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(c.want, found(t, n, c.check, c.of)); diff != "" {
			t.Errorf("%s: findings (-want +got):\n%s", c.what, diff)
		}
	}
}

// A bridge in promiscuous mode hands the packets of pods to the node, which sends them
// back.
func TestPromiscuousBridgesNeedNoHairpin(t *testing.T) {
	n := setUp(t, false)
	l, err := n.Netlink().LinkByName("cni0")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Netlink().SetPromiscOn(l); err != nil {
		t.Fatal(err)
	}
	if got := found(t, n, Translation, at(dual, pods)); got != nil {
		t.Errorf("findings: got %q, want none", got)
	}
}

// What is not there is found where it is needed, and what cannot be read is, too.
func TestUnreadSettings(t *testing.T) {
	one := []bridge{{name: "br0", addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}}
	for _, c := range []struct {
		what    string
		sysctl  error
		bridges error
		want    []string
	}{
		{"no such setting", fs.ErrNotExist, nil, []string{calls4 + " not there"}},
		{"no reading", fs.ErrPermission, nil, []string{forward4 + " unknown", forward6 + " unknown", calls4 + " unknown"}},
		{"no listing", fs.ErrNotExist, netlink.ErrNotImplemented, []string{"bridges unknown"}},
	} {
		n := node{at(dual, pods), func(string) (string, error) { return "", c.sysctl }, func() ([]bridge, error) { return one, c.bridges }}
		var got []string
		for _, p := range slices.Concat(n.forwarding(), n.bridged()) {
			got = append(got, text(t, p))
			if strings.Contains(p.Error(), "unknown") && !strings.Contains(p.Error(), errors.Join(c.bridges, c.sysctl).Error()[:10]) {
				t.Errorf("%s: %v does not say why", c.what, p)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: findings (-want +got):\n%s", c.what, diff)
		}
	}
}
