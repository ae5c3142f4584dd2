package agent

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// trackUDP makes a conntrack entry as if the kernel had translated a flow to an address.
func trackUDP(t *testing.T, ns *netns.NS, to string, from uint16) {
	t.Helper()
	client, server := net.ParseIP("192.0.2.10").To4(), net.ParseIP("10.244.1.99").To4()
	err := ns.Netlink().ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET, TimeOut: 600,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: client, SrcPort: from, DstIP: net.ParseIP(to).To4(), DstPort: 53},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: server, SrcPort: 5353, DstIP: client, DstPort: from},
	})
	testenv.NoError(t, err)
}

// trackedUDP returns the destinations of UDP flows, sorted.
func trackedUDP(t *testing.T, ns *netns.NS) (all []string) {
	t.Helper()
	flows, err := ns.Netlink().ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	testenv.NoError(t, err)
	for _, f := range flows {
		if f.Forward.Protocol == unix.IPPROTO_UDP {
			all = append(all, f.Forward.DstIP.String())
		}
	}
	slices.Sort(all)
	return all
}

// TestFlows checks that conntrack entries that became stale while no program ran are removed,
// and that entries of another proxy's Services stay.
func TestFlows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "mode: nftables\n")
	theirs := service("theirs", "10.96.0.66")
	theirs.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	w.api.put("services", theirs)
	for i, to := range []string{"10.96.0.66", "10.96.0.77", "203.0.113.5"} {
		trackUDP(t, w.node.NS, to, uint16(4000+i))
	}
	p := w.start()
	p.Await("msg=serving")
	want := []string{"10.96.0.66", "203.0.113.5"}
	var got []string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = trackedUDP(t, w.node.NS); slices.Equal(got, want) {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("destinations of flows: got %q, want %q", got, want)
	}
	p.AwaitPage(metrics+"/metrics", `kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 1`)
	p.Terminate(stopped)
}
