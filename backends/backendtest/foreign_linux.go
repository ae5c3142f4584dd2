package backendtest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A foreign device with an address, at which node ports answer, and a foreign virtual server of
// IPVS and a set of ipset with other addresses.
const (
	foreignLink    = "somebody-else0"
	foreignAddress = "198.51.100.99"
	foreignServer  = "198.51.100.97"
	foreignServers = "-A -t " + foreignServer + ":80 -s rr\n-a -t " + foreignServer + ":80 -r 198.51.100.98:80 -m\n"
	foreignSets    = "create SOMEBODY-ELSES hash:ip\nadd SOMEBODY-ELSES " + foreignServer + "\n"
)

// addForeign makes the foreign objects that this kernel can have.
func (s *stage) addForeign(t *testing.T) {
	t.Helper()
	n := findNFT(t, s.node())
	err := errors.Join(n.load(foreignTable), s.node().AddBridge(foreignLink))
	for _, a := range cluster.Addrs(foreignAddress, "fd00:99::99") {
		if s.world.has(a) {
			err = errors.Join(err, s.node().AddAddress(foreignLink, cluster.Single(a)))
		}
	}
	testenv.NoError(t, err)
	for _, program := range s.iptables() {
		s.runAtNode(t, foreignRules, program+"-restore", "--noflush")
	}
	if s.hasIPVS(t) {
		s.runAtNode(t, foreignServers, "ipvsadm", "--restore")
	}
	if s.hasSets(t) {
		s.runAtNode(t, foreignSets, "ipset", "restore")
	}
}

// hasIPVS reports whether the node has IPVS, and the program for it.
func (s *stage) hasIPVS(t testing.TB) bool {
	t.Helper()
	_, err := os.Stat("/proc/net/ip_vs") // The program would load the module.
	return err == nil && s.canRun(t, "ipvsadm", "--list", "--numeric")
}

// hasSets reports whether the node has ipset, and the program for it.
func (s *stage) hasSets(t testing.TB) bool {
	t.Helper()
	return s.canRun(t, "ipset", "list", "-name")
}

// objects returns the devices, virtual servers and sets of the node.
func (s *stage) objects(t *testing.T) (all []string) {
	t.Helper()
	for _, l := range s.links(t) {
		a := l.Attrs()
		all = append(all, fmt.Sprintf("link %s %s mtu %d %s", a.Name, l.Type(), a.MTU, a.Flags))
	}
	if s.hasIPVS(t) {
		all = append(all, strings.Split(s.runAtNode(t, "", "ipvsadm", "--save", "--numeric"), "\n")...)
	}
	if s.hasSets(t) {
		all = append(all, strings.Split(s.runAtNode(t, "", "ipset", "save"), "\n")...)
	}
	slices.Sort(all)
	return all
}

func (s *stage) links(t *testing.T) []netlink.Link {
	t.Helper()
	all, err := s.node().Netlink().LinkList()
	testenv.NoError(t, err)
	return all
}

// removeObjects removes the virtual servers and the sets of the node, and all devices but
// some.
func (s *stage) removeObjects(t *testing.T, but []netlink.Link) {
	t.Helper()
	if s.hasIPVS(t) {
		s.runAtNode(t, "", "ipvsadm", "--clear")
	}
	if s.hasSets(t) {
		s.runAtNode(t, "", "ipset", "destroy")
	}
	for _, l := range s.links(t) {
		known := slices.ContainsFunc(but, func(k netlink.Link) bool { return k.Attrs().Name == l.Attrs().Name })
		if !known {
			if err := s.node().Netlink().LinkDel(l); err != nil {
				t.Fatalf("removing device %s: %v", l.Attrs().Name, err)
			}
		}
	}
}

// settings returns the kernel parameters of the node that backends change, and that Cleanup must not leave changed.
func (s *stage) settings(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	s.onNode(t, func() error {
		for _, pattern := range []string{
			"net/ipv4/ip_forward", "net/ipv4/vs/*", "net/ipv6/conf/all/forwarding",
			"net/ipv4/conf/*/arp_*", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/route_localnet",
		} {
			names, err := filepath.Glob("/proc/sys/" + pattern)
			if err != nil {
				return err
			}
			for _, name := range names {
				value, err := os.ReadFile(name) //nolint:gosec // a kernel parameter
				if err != nil && !errors.Is(err, fs.ErrPermission) {
					return err
				}
				all[name] = string(value)
			}
		}
		// Backend ipvs leaves these three as they are, as kube-proxy does: without virtual servers they have no effect,
		// and the other ones may belong to another program that needs them.
		for _, name := range []string{"conntrack", "expire_nodest_conn", "expire_quiescent_template"} {
			delete(all, "/proc/sys/net/ipv4/vs/"+name)
		}
		return nil
	})
	return all
}

// wantSettings compares the kernel parameters of the node with earlier ones. There may be new
// ones, of modules that were loaded since.
func (s *stage) wantSettings(t *testing.T, want map[string]string) {
	t.Helper()
	got := s.settings(t)
	maps.DeleteFunc(got, func(name, _ string) bool { _, known := want[name]; return !known })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after Cleanup: kernel parameters of the node (-before +after):\n%s", diff)
	}
}
