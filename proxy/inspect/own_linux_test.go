package inspect

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// addDevice makes an interface with addresses.
func addDevice(t *testing.T, ns *netns.NS, name string, addresses ...string) {
	t.Helper()
	err := ns.AddBridge(name)
	for _, a := range addresses {
		err = errors.Join(err, ns.AddAddress(name, netip.MustParsePrefix(a)))
	}
	testenv.NoError(t, err)
}

// TestNodePortsAtLocalAddresses checks at which addresses of interfaces node ports answer: not at
// those that a backend has added for Services, nor at ClusterIPs, whatever interface has them.
func TestNodePortsAtLocalAddresses(t *testing.T) {
	ns := netnstest.NewNS(t)
	addDevice(t, ns, "eth0", "192.0.2.1/24", "192.0.2.2/24", "203.0.113.8/32", "10.96.0.11/32", "10.96.0.77/32")
	addDevice(t, ns, "vipkit-ipvs0", "10.96.0.10/32", "203.0.113.7/32")
	web := service("web", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"203.0.113.7", "203.0.113.8", "192.0.2.1"}
	other := service("other", "10.96.0.11")
	other.Spec.Ports[0].NodePort = 0
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName: "node-1", NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		NodePortAddresses: proxy.NodePortAddresses{All: true},
		ServiceCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
	})
	addServices(tracker, web, other)
	s := synced(t, tracker)
	for at, want := range map[string]proxy.Action{
		"192.0.2.1":    proxy.Forward, // in the Node
		"192.0.2.2":    proxy.Forward, // a secondary address
		"192.0.2.9":    proxy.Pass,    // no address of the node
		"10.96.0.10":   proxy.Reject,  // a ClusterIP at the device of the backend
		"10.96.0.11":   proxy.Reject,  // a ClusterIP at any other interface
		"10.96.0.77":   proxy.Drop,    // one that its Service has no more
		"203.0.113.7":  proxy.Pass,    // an external IP at the device of the backend
		"203.0.113.8":  proxy.Forward, // one that the node has itself
		"198.51.100.1": proxy.Pass,
	} {
		q := query{Protocol: string(v1.ProtocolTCP), Source: "198.51.100.9", Interface: "eth0", Destination: at + ":30080"}
		var a answer
		testenv.NoError(t, ns.Do(func() error { a = q.answer(s); return nil }))
		if a.Verdict == nil {
			t.Errorf("%s: got error %s, want a verdict", at, a.Error)
		} else if a.Verdict.Action != want {
			t.Errorf("%s: got %s because %q, want %s", at, a.Verdict.Action, a.Verdict.Reasons, want)
		}
	}
}
