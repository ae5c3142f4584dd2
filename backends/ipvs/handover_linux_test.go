//go:build ipvs

package ipvs

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The changes of settings go to the device of another identity, which keeps its own ones, with the values
// before both. The device of kube-proxy, and one that is no dummy device, is none.
func TestHandOver(t *testing.T) {
	handle := netnstest.NewNS(t).Netlink()
	add := func(l netlink.Link, alias string) {
		t.Helper()
		testenv.NoError(t, handle.LinkAdd(l))
		testenv.NoError(t, handle.LinkSetAlias(l, alias))
	}
	named := func(name string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name} }
	b := &backend{target: &target{}}
	d := &b.target.device
	d.name, d.handle = "vipkit-ipvs0", handle
	add(&netlink.Bridge{LinkAttrs: named("bridge-ipvs0")}, "")
	add(&netlink.Dummy{LinkAttrs: named("kube-ipvs0")}, "")
	add(&netlink.Dummy{LinkAttrs: named("dummy0")}, "")
	add(&netlink.Dummy{LinkAttrs: named(d.name)}, "conntrack=0>1 tcp=900>100")
	if other, err := d.other(); other != nil || err != nil {
		t.Errorf("without another identity: got device %v, error %v, want none", other, err)
	}
	add(&netlink.Dummy{LinkAttrs: named("other-ipvs0")}, "tcp=100>50 udp=300>60")
	other, err := d.other()
	if err != nil || other == nil {
		t.Fatalf("device of another identity: got %v, error %v, want one", other, err)
	}
	testenv.NoError(t, b.handOver(other))
	after, err := handle.LinkByName("other-ipvs0")
	testenv.NoError(t, err)
	if got, want := after.Attrs().Alias, "conntrack=0>1 tcp=900>50 udp=300>60"; got != want {
		t.Errorf("alias of the other device: got %q, want %q", got, want)
	}
}
