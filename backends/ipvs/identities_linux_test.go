//go:build ipvs

package ipvs

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Only a dummy device with the name of a backend ipvs is the device of another identity. That of kube-proxy is not.
func TestDeviceOfAnotherIdentity(t *testing.T) {
	handle := netnstest.NewNS(t).Netlink()
	named := func(name string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name} }
	d := &device{name: "vipkit-ipvs0", handle: handle}
	for _, tc := range []struct {
		link    netlink.Link
		isAlone bool
	}{
		{&netlink.Bridge{LinkAttrs: named("bridge-ipvs0")}, true},
		{&netlink.Dummy{LinkAttrs: named("kube-ipvs0")}, true},
		{&netlink.Dummy{LinkAttrs: named("dummy0")}, true},
		{&netlink.Dummy{LinkAttrs: named(d.name)}, true},
		{&netlink.Dummy{LinkAttrs: named("other-ipvs0")}, false},
	} {
		testenv.NoError(t, handle.LinkAdd(tc.link))
		if got, err := d.isAlone(); got != tc.isAlone || err != nil {
			t.Errorf("with device %s: got %t, error %v, want %t", tc.link.Attrs().Name, got, err, tc.isAlone)
		}
	}
}
