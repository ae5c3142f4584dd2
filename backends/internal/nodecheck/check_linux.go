package nodecheck

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Translation returns a problem for each setting that breaks Services of a dataplane that
// translates addresses and lets the kernel forward the packets.
func Translation(s proxy.Snapshot) []*proxy.Problem {
	n := node{s, readSysctl, listBridges}
	return append(n.forwarding(), n.bridged()...)
}

// Capture returns a problem for each setting that breaks Services of a dataplane that
// marks packets and lets the kernel deliver them to sockets of the node, whatever their
// destination is.
func Capture(s proxy.Snapshot) []*proxy.Problem {
	return node{s, readSysctl, listBridges}.marked()
}

// node reads the settings of a node.
type node struct {
	proxy.Snapshot
	sysctl  func(name string) (string, error)
	bridges func() ([]bridge, error)
}

// family is an IP family with the names of its settings.
type family struct {
	family         v1.IPFamily
	forward, calls string
}

// families returns those families of the node's addresses that Services have. Without a known
// address, or without Services, it does not ask for that.
func (n node) families() []family {
	all := []family{
		{v1.IPv4Protocol, "net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables"},
		{v1.IPv6Protocol, "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-ip6tables"},
	}
	if n.IsZero() {
		return all
	}
	addresses := n.Node().Addresses
	return slices.DeleteFunc(all, func(f family) bool {
		isOfNode := slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == (f.family == v1.IPv4Protocol) })
		return len(addresses) > 0 && !isOfNode || n.Len() > 0 && !HasServices(n.Snapshot, f.family)
	})
}

// HasServices reports whether a service port is of a family.
func HasServices(s proxy.Snapshot, f v1.IPFamily) bool {
	for p := range s.All() {
		if p.Name.Family == f {
			return true
		}
	}
	return false
}

// setting reads a sysctl. The value is empty if the kernel does not have the sysctl, or
// if it cannot be read; then found has a problem.
func (n node) setting(name string) (value string, found []*proxy.Problem) {
	value, err := n.sysctl(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		found = append(found, n.unread(name, err))
	}
	return value, found
}

// finding describes a wrong setting.
type finding struct{ value, consequence, remedy string }

// Error returns value, consequence and remedy.
func (f *finding) Error() string {
	return fmt.Sprintf("is %s: %s; remedy: %s", f.value, f.consequence, f.remedy)
}

func (n node) problem(setting string, f finding) *proxy.Problem {
	p := &proxy.Problem{Kind: "Node", Field: setting, Reason: proxy.NodeSetting, Err: &f}
	if !n.IsZero() {
		p.Name = n.Node().Name
	}
	return p
}

// unread makes the problem for a setting that cannot be read.
func (n node) unread(setting string, err error) *proxy.Problem {
	return n.problem(setting, finding{
		"unknown", fmt.Sprintf("it cannot be read, and may break Services: %v", err),
		"let the process read /proc/sys and list network interfaces",
	})
}

func (n node) forwarding() (found []*proxy.Problem) {
	for _, f := range n.families() {
		value, unknown := n.setting(f.forward)
		found = append(found, unknown...)
		if value == "0" {
			found = append(found, n.problem(f.forward, finding{
				value, "the node does not forward packets, so only host-network endpoints on it can be reached",
				"sysctl -w " + f.forward + "=1",
			}))
		}
	}
	return found
}

// bridged checks the bridges of pods. Replies of one pod of a bridge to another pass
// the node's netfilter only if bridge-nf-call-iptables is 1. A packet of a pod to itself
// then returns to the pod only if the hairpin_mode of its port is on.
func (n node) bridged() (found []*proxy.Problem) {
	bridges, err := n.bridges()
	if err != nil {
		return []*proxy.Problem{n.unread("bridges", err)}
	}
	hairpins := map[string]bool{} // the names of bridges that need hairpin_mode
	for _, f := range n.families() {
		names := n.podBridges(bridges, f)
		if len(names) == 0 {
			continue
		}
		switch value, unknown := n.setting(f.calls); {
		case unknown != nil:
			found = append(found, unknown...)
		case value == "1":
			for _, name := range names {
				hairpins[name] = true
			}
		default:
			found = append(found, n.problem(f.calls, unfiltered(f.calls, value, names)))
		}
	}
	for _, b := range bridges {
		if hairpins[b.name] && b.lacksHairpins {
			found = append(found, n.problem("hairpin_mode of "+b.name, finding{
				"off", "a pod of the bridge that connects to a Service and is its endpoint gets no reply",
				"let the CNI plug-in set it (hairpinMode), or set it for each port: bridge link set dev PORT hairpin on",
			}))
		}
	}
	return found
}

// podBridges returns the names of the bridges that may have pods of a family.
func (n node) podBridges(bridges []bridge, f family) (names []string) {
	for _, b := range bridges {
		if n.hasPods(b, f) {
			names = append(names, b.name)
		}
	}
	return names
}

// unfiltered is the finding about bridge-nf-call-iptables or -ip6tables.
func unfiltered(setting, value string, bridges []string) finding {
	f := finding{
		value, "connections to Services from one pod of a bridge (" + strings.Join(bridges, ", ") +
			") to another fail: replies bypass the node's netfilter, which would translate them back",
		"sysctl -w " + setting + "=1",
	}
	if value == "" {
		f.value, f.remedy = "missing", "modprobe br_netfilter, then "+f.remedy
	}
	return f
}

// hasPods reports whether a bridge may have pods of a family: it has an address of that
// family and, if LocalTraffic identifies pods, one that matches.
func (n node) hasPods(b bridge, f family) bool {
	var pods proxy.LocalTraffic
	if !n.IsZero() {
		pods = n.Node().LocalTraffic
	}
	identified := len(pods.Sources) > 0 || pods.Interface != "" || pods.InterfacePrefix != ""
	return slices.ContainsFunc(b.addrs, func(a netip.Addr) bool {
		return a.Is4() == (f.family == v1.IPv4Protocol) && (!identified || pods.Match(a, b.name))
	})
}

// marked checks src_valid_mark. If it is 1, the kernel uses the mark for the validation of
// a packet's source, so that the source of a captured packet is local, and drops the packet.
func (n node) marked() (found []*proxy.Problem) {
	const name = "net.ipv4.conf.all.src_valid_mark"
	if !slices.ContainsFunc(n.families(), func(f family) bool { return f.family == v1.IPv4Protocol }) {
		return nil
	}
	value, found := n.setting(name)
	if value == "1" {
		found = append(found, n.problem(name, finding{
			value, "the kernel drops all IPv4 packets to Services, because it treats the sources of marked packets as local addresses",
			"sysctl -w " + name + "=0",
		}))
	}
	return found
}

func readSysctl(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")))
	return strings.TrimSpace(string(text)), err
}

// Foreign are objects of another backend or program that translate connections to Services, too.
type Foreign struct {
	Owner   string
	Objects []string
	Remedy  string
}

// Coexistence returns the problem that such objects are.
func Coexistence(s proxy.Snapshot, f Foreign) *proxy.Problem {
	return node{Snapshot: s}.problem(strings.Join(f.Objects, ", "), finding{
		"present", "connections to Services may go where " + f.Owner + " sends them", f.Remedy,
	})
}
