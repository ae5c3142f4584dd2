package nodecheck

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// at returns a snapshot of a node with some addresses, whose pods have addresses of some
// ranges.
func at(addrs, pods string) proxy.Snapshot {
	return proxy.NewSnapshot(&proxy.Node{
		Name: "node", Addresses: snapshots.Addrs(strings.Fields(addrs)...), LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes(strings.Fields(pods)...)},
	})
}

// serving returns the snapshot with a service port of each family.
func serving(s proxy.Snapshot, families ...v1.IPFamily) proxy.Snapshot {
	var ports []*proxy.ServicePort
	for _, f := range families {
		ports = append(ports, &proxy.ServicePort{Name: proxy.ServicePortName{Family: f}})
	}
	return proxy.NewSnapshot(s.Node(), ports...)
}

// behind returns a snapshot of a node that identifies pods by their interface.
func behind(bridge, prefix string) proxy.Snapshot {
	n := *at(dual, "").Node()
	n.LocalTraffic.Interface, n.LocalTraffic.InterfacePrefix = bridge, prefix
	return proxy.NewSnapshot(&n)
}

const dual, pods = "192.0.2.1 2001:db8::1", "10.1.0.0/16 fd00:1::/32"

// setUp makes a node that forwards packets, with a bridge for pods and a bridge without
// ports.
func setUp(t *testing.T, hairpin bool) *netns.NS {
	t.Helper()
	n := lab.New(t,
		lab.Host{Name: "node"},
		lab.Host{Name: "port", Uplink: "node", Bridge: "cni0", Hairpin: hairpin, Gateway: "10.1.0.1/24 fd00:1::1/64"},
	).NS("node")
	testenv.NoError(t, n.AddBridge("unused0"))
	testenv.NoError(t, n.AddAddress("unused0", netip.MustParsePrefix("10.1.7.1/24")))
	return n
}

// found returns the settings that check reports, with their values.
func found(t *testing.T, n *netns.NS, check func(proxy.Snapshot) []*proxy.Problem, s proxy.Snapshot) (all []string) {
	t.Helper()
	err := n.Do(func() error {
		for _, p := range check(s) {
			all = append(all, text(t, p))
		}
		return nil
	})
	testenv.NoError(t, err)
	return all
}

// text returns a setting with its value.
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

// Each setting is reported exactly where it breaks Services.
func TestFindings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what    string
		hairpin bool
		sysctls map[string]string
		check   func(proxy.Snapshot) []*proxy.Problem
		of      proxy.Snapshot
		want    []string
	}{
		{"no wrong setting", true, nil, Translation, at(dual, pods), nil},
		{"no forwarding", true, map[string]string{forward4: "0", forward6: "0"}, Translation, at(dual, pods), []string{forward4 + " 0", forward6 + " 0"}},
		{"no forwarding, family not in use", true, map[string]string{forward6: "0"}, Translation, at("192.0.2.1", pods), nil},
		{"no forwarding, addresses unknown", true, map[string]string{forward6: "0"}, Translation, at("", pods), []string{forward6 + " 0"}},
		{"no forwarding, zero snapshot", true, map[string]string{forward4: "0"}, Translation, proxy.Snapshot{}, []string{forward4 + " 0"}},
		{"no forwarding, no Services of the family", true, map[string]string{forward4: "0", forward6: "0"}, Translation, serving(at(dual, pods), v1.IPv4Protocol), []string{forward4 + " 0"}},
		{"no forwarding, no Services of the family, addresses unknown", true, map[string]string{forward4: "0", forward6: "0"}, Translation, serving(at("", pods), v1.IPv6Protocol), []string{forward6 + " 0"}},
		{"no forwarding, Services of both families", true, map[string]string{forward6: "0"}, Translation, serving(at(dual, pods), v1.IPv4Protocol, v1.IPv6Protocol), []string{forward6 + " 0"}},
		{"no forwarding, Services of a family that the node lacks", true, map[string]string{forward6: "0"}, Translation, serving(at("192.0.2.1", pods), v1.IPv6Protocol), nil},
		{"unfiltered bridge", true, map[string]string{calls4: "0", calls6: "0"}, Translation, at(dual, pods), []string{calls4 + " 0", calls6 + " 0"}},
		{"unfiltered bridge, IPv6 only", true, map[string]string{calls4: "0", calls6: "0"}, Translation, at("2001:db8::1", pods), []string{calls6 + " 0"}},
		{"unfiltered bridge without pods", true, map[string]string{calls4: "0"}, Translation, at(dual, "10.9.0.0/16"), nil},
		{"unfiltered bridge, pods unknown", true, map[string]string{calls4: "0"}, Translation, at(dual, ""), []string{calls4 + " 0"}},
		{"unfiltered bridge, pods by interface", true, map[string]string{calls4: "0"}, Translation, behind("cni0", ""), []string{calls4 + " 0"}},
		{"unfiltered bridge, pods by interface prefix", true, map[string]string{calls4: "0"}, Translation, behind("", "cni"), []string{calls4 + " 0"}},
		{"unfiltered bridge, pods on another interface", true, map[string]string{calls4: "0"}, Translation, behind("cbr0", "veth"), nil},
		{"no hairpin", false, nil, Translation, at(dual, pods), []string{"hairpin_mode of cni0 off"}},
		{"no hairpin, bridge without pods", false, nil, Translation, at(dual, "10.9.0.0/16"), nil},
		{"no hairpin, not needed", false, map[string]string{calls4: "0", calls6: "0"}, Translation, at(dual, pods), []string{calls4 + " 0", calls6 + " 0"}},
		{"no hairpin, needed in one family", false, map[string]string{calls6: "0"}, Translation, at(dual, pods), []string{calls6 + " 0", "hairpin_mode of cni0 off"}},
		{"src_valid_mark", true, map[string]string{markedSources: "1"}, Translation, at(dual, pods), nil},
		{"src_valid_mark, captured", true, map[string]string{markedSources: "1"}, Capture, at(dual, pods), []string{markedSources + " 1"}},
		{"src_valid_mark, IPv6 only", true, map[string]string{markedSources: "1"}, Capture, at("2001:db8::1", pods), nil},
		{"captured, all other settings wrong", false, map[string]string{forward4: "0", forward6: "0", calls4: "0", calls6: "0"}, Capture, at(dual, pods), nil},
	} {
		n := setUp(t, c.hairpin)
		for name, value := range c.sysctls {
			testenv.NoError(t, n.Sysctl(strings.ReplaceAll(name, ".", "/"), value))
		}
		testenv.Same(t, c.want, found(t, n, c.check, c.of), "%s: findings", c.what)
	}
}

// A bridge in promiscuous mode passes the packets of pods to the node, which sends them
// back.
func TestPromiscuousBridgesNeedNoHairpin(t *testing.T) {
	t.Parallel()
	n := setUp(t, false)
	l, err := n.Netlink().LinkByName("cni0")
	testenv.NoError(t, err)
	testenv.NoError(t, n.Netlink().SetPromiscOn(l))
	if got := found(t, n, Translation, at(dual, pods)); got != nil {
		t.Errorf("findings: got %q, want none", got)
	}
}

// A setting that does not exist is reported if it is needed, and so is one that cannot be
// read.
func TestUnreadSettings(t *testing.T) {
	t.Parallel()
	one := []bridge{{name: "br0", addrs: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}}
	for _, c := range []struct {
		what    string
		sysctl  error
		bridges error
		want    []string
	}{
		{"no such setting", fs.ErrNotExist, nil, []string{calls4 + " missing"}},
		{"setting cannot be read", fs.ErrPermission, nil, []string{forward4 + " unknown", forward6 + " unknown", calls4 + " unknown"}},
		{"bridges cannot be listed", fs.ErrNotExist, netlink.ErrNotImplemented, []string{"bridges unknown"}},
	} {
		n := node{at(dual, pods), func(string) (string, error) { return "", c.sysctl }, func() ([]bridge, error) { return one, c.bridges }}
		cause := c.sysctl
		if c.bridges != nil {
			cause = c.bridges
		}
		var got []string
		for _, p := range slices.Concat(n.forwarding(), n.bridged()) {
			got = append(got, text(t, p))
			if strings.Contains(p.Error(), "unknown") && !strings.Contains(p.Error(), cause.Error()) {
				t.Errorf("%s: problem: got %v, want it to include the cause", c.what, p)
			}
		}
		testenv.Same(t, c.want, got, "%s: findings", c.what)
	}
}
