package conntrack

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// newKernelTable returns a Cleaner in a new namespace, and its table.
func newKernelTable(t testing.TB) (*netns.NS, *Cleaner, *kernelTable) {
	t.Helper()
	ns, c := newKernelCleaner(t, Options{})
	k, ok := c.table.(*kernelTable)
	if !ok {
		t.Fatalf("the table is a %T", c.table)
	}
	return ns, c, k
}

// Flows in another zone are other programs', also if they look like stale flows.
func TestOtherZones(t *testing.T) {
	t.Parallel()
	_, c, k := newKernelTable(t)
	const client, service, server = 1, 10, 2
	at := join(attribute(nl.CTA_PROTO_NUM, byte(protoUDP)), attribute(nl.CTA_PROTO_SRC_PORT, 0, 53), attribute(nl.CTA_PROTO_DST_PORT, 0, 53))
	make := func(zone byte) error {
		r := k.request(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, unix.AF_INET)
		r.AddRawData(join(
			direction(nl.CTA_TUPLE_ORIG, client, service, at), direction(nl.CTA_TUPLE_REPLY, server, client, at),
			attribute(nl.CTA_TIMEOUT, 0, 0, 2, 0), attribute(nl.CTA_ZONE, 0, zone),
		))
		_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
		return err
	}
	testenv.NoError(t, errors.Join(make(0), make(5)))
	var account Account
	c.options.Observe = func(a Account) { account = a }
	const vip = "192.0.2.10:53"
	mustClean(t, c, proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list("192.0.2.2:53"))), proxy.NewSnapshot(node()))
	if account.Flows != 1 || account.Removed != 1 {
		t.Errorf("got account %+v, want one flow, removed", account)
	}
	if here, there := make(0), make(5); here != nil || !errors.Is(there, unix.EEXIST) {
		t.Errorf("making the same flows again: got %v, and %v in the other zone, want no error and %v", here, there, unix.EEXIST)
	}
}

// localAddresses returns the addresses of both families that the namespace has.
func TestLocalAddresses(t *testing.T) {
	t.Parallel()
	ns, _, k := newKernelTable(t)
	lo, err := ns.Netlink().LinkByName("lo")
	testenv.NoError(t, err)
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for _, a := range want {
		ip := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
		testenv.NoError(t, ns.Netlink().AddrAdd(lo, &netlink.Addr{IPNet: ip}))
	}
	got, err := k.localAddresses()
	testenv.NoError(t, err)
	got = slices.DeleteFunc(got, netip.Addr.IsLoopback)
	slices.SortFunc(got, netip.Addr.Compare)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

// Requests have a timeout, and fail after the table is closed.
func TestClosedTable(t *testing.T) {
	t.Parallel()
	_, c, k := newKernelTable(t)
	const limit = timeoutSeconds * time.Second
	if send, receive := k.sockets[unix.NETLINK_NETFILTER].Socket.GetTimeouts(); send != limit || receive != limit {
		t.Errorf("got timeouts %v and %v, want %v", send, receive, limit)
	}
	testenv.NoError(t, c.Close())
	if err := k.dump(filter{v1.IPv4Protocol, protoUDP}, func(flow) {}); err == nil {
		t.Error("dump of a closed table: got no error")
	}
	if err := k.remove(to(protoUDP, vip, a)); err == nil {
		t.Error("removal from a closed table: got no error")
	}
}

// Flows that began with a reply from a new frontend are removed, and no others.
func TestRepliesInTheKernel(t *testing.T) {
	t.Parallel()
	ns, c := newKernelCleaner(t, Options{})
	client := netip.MustParseAddrPort("198.51.100.7:4000")
	near := snapshots.AddrPorts("10.96.0.10:54", "10.96.0.11:53")
	for _, from := range append(near, netip.MustParseAddrPort(vip)) {
		track(t, ns, from, client, client)
	}
	mustClean(t, c, proxy.NewSnapshot(node()), proxy.NewSnapshot(node(), port("dns", v1.ProtocolUDP, list(vip), list(a))))
	if got := tracked(t, ns, unix.AF_INET, client); len(got) != len(near) {
		t.Errorf("got %d flows left, want %d", len(got), len(near))
	}
}

// New fails without CAP_NET_ADMIN, rather than the first Clean.
func TestNewNeedsPrivileges(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	var got error
	if err := ns.Do(func() error {
		return withoutNetAdmin(func() error {
			c, err := New(Options{})
			if got = err; err == nil {
				return c.Close()
			}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	if got == nil || !strings.Contains(got.Error(), "CAP_NET_ADMIN is needed") {
		t.Errorf("New without CAP_NET_ADMIN: got error %v, want that it is needed", got)
	}
}

// withoutNetAdmin runs f without CAP_NET_ADMIN on the calling thread.
func withoutNetAdmin(f func() error) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		return err
	}
	without := before
	without[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &without[0]); err != nil {
		return err
	}
	return errors.Join(f(), unix.Capset(&header, &before[0]))
}
