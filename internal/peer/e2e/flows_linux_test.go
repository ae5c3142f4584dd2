package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// udpPort is the index of the UDP port in the ports of a Service.
const udpPort = 1

// testFlows makes changes of all kinds to a Service while clients send datagrams to it without
// a pause, through a node of each mode.
func testFlows(t *testing.T, c *cluster) {
	for _, n := range []*node{c.nodes[0], c.nodes[2]} {
		t.Run(n.mode, func(t *testing.T) {
			f := newFlows(t, c, n)
			f.replaceEndpoints()
			f.changeFrontends()
			f.killAgent()
			f.step("the Service is deleted", func() {
				testenv.NoError(t, c.client.CoreV1().Services("default").Delete(t.Context(), f.service.Name, metav1.DeleteOptions{}))
				f.wantSilence(f.senders...)
			})
		})
	}
}

// flows are the UDP flows to one Service through one node.
type flows struct {
	*testing.T
	c        *cluster
	node     *node
	service  *v1.Service
	outside  pair // the Service's external addresses
	senders  []*sender
	silenced map[*sender]bool // senders that must get no replies
	pods     []*pod           // the pods that must reply to all other senders
}

func newFlows(t *testing.T, c *cluster, n *node) *flows {
	t.Helper()
	// With timestamps, a new conntrack entry differs from an old one.
	testenv.NoError(t, n.ns.Sysctl("net/netfilter/nf_conntrack_timestamp", "1"))
	f := &flows{T: t, c: c, node: n, silenced: map[*sender]bool{}}
	f.outside = parsePair("198.51.100.%d/32", "2001:db8:e::%d/128", n.number())
	for _, a := range f.outside {
		c.network.must(n.ns.AddAddress("lo", a))
	}
	c.network.addRoute(f.outside, n)
	f.service = c.makeService("dns-"+n.mode, v1.ServiceSpec{Type: v1.ServiceTypeNodePort, ExternalIPs: f.externalIPs()})
	for _, on := range c.nodes[:2] {
		f.pods = append(f.pods, c.startPod(f.service.Name, on))
	}
	client := c.startPod("client", n)
	inside := [2]netip.Addr{client.addresses[0].Addr(), client.addresses[1].Addr()}
	for i, to := range clusterIPs(f.service) {
		f.senders = append(f.senders, startSender(t, client.ns, netip.AddrPortFrom(inside[i], 20000), to))
	}
	for _, to := range f.outside {
		f.sendFromOutside(netip.AddrPortFrom(to.Addr(), 80))
	}
	f.sendToNodePort(f.service.Spec.Ports[udpPort].NodePort)
	f.step("all flows are new", func() {})
	return f
}

func (f *flows) externalIPs() []string {
	return []string{f.outside[0].Addr().String(), f.outside[1].Addr().String()}
}

func (f *flows) sendFromOutside(to netip.AddrPort) *sender {
	f.Helper()
	from := parsePair("192.0.2.10/32", "2001:db8::10/128")
	i := 0
	if to.Addr().Is6() {
		i = 1
	}
	s := startSender(f.T, f.c.network.outside, netip.AddrPortFrom(from[i].Addr(), uint16(20000+100*f.node.number()+len(f.senders))), to)
	f.senders = append(f.senders, s)
	return s
}

// sendToNodePort sends to both addresses of the node.
func (f *flows) sendToNodePort(port int32) (both []*sender) {
	f.Helper()
	for _, a := range f.node.addresses {
		both = append(both, f.sendFromOutside(netip.AddrPortFrom(a.Addr(), uint16(port))))
	}
	return both
}

func (f *flows) wantSilence(all ...*sender) {
	for _, s := range all {
		f.silenced[s] = true
	}
}

// entry is the conntrack entry of a flow.
type entry struct {
	server netip.Addr
	began  uint64
}

// entries returns the conntrack entries of the senders' flows that are translated.
func (f *flows) entries() map[*sender]entry {
	f.Helper()
	all := map[*sender]entry{}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		list, err := f.node.ns.Netlink().ConntrackTableList(netlink.ConntrackTable, family)
		testenv.NoError(f, err)
		for _, x := range list {
			source, _ := netip.AddrFromSlice(x.Forward.SrcIP)
			dest, _ := netip.AddrFromSlice(x.Forward.DstIP)
			server, _ := netip.AddrFromSlice(x.Reverse.SrcIP)
			for _, s := range f.senders {
				if x.Forward.Protocol == unix.IPPROTO_UDP && server != dest &&
					s.from == netip.AddrPortFrom(source.Unmap(), x.Forward.SrcPort) && s.to == netip.AddrPortFrom(dest.Unmap(), x.Forward.DstPort) {
					all[s] = entry{server.Unmap(), x.TimeStart}
				}
			}
		}
	}
	return all
}

// step makes a change, and waits until each flow reaches a pod that exists, or none if it
// must not. Flows that the change does not affect must keep their conntrack entry.
func (f *flows) step(what string, change func()) {
	f.Helper()
	before := f.entries()
	change()
	began := time.Now()
	var after map[*sender]entry
	eventually(f.T, what+", and all flows reach the right pods", func() error {
		after = f.entries()
		return f.check(after, began)
	})
	for s, e := range after {
		if e.began == 0 {
			f.Fatalf("%v: conntrack entry: got no start time, want one", s)
		}
	}
	f.Logf("%s: all flows reached the right pods within %v", what, time.Since(began).Round(time.Millisecond))
	for s, old := range before {
		if now, ok := after[s]; ok && f.isServing(old.server) && now != old {
			f.Errorf("%s: %v: conntrack entry: got %[4]v, want %[3]v, as %[5]v still serves", what, s, old, now, old.server)
		}
	}
}

func (f *flows) isServing(a netip.Addr) bool {
	return slices.ContainsFunc(f.pods, func(p *pod) bool { return p.addresses[0].Addr() == a || p.addresses[1].Addr() == a })
}

func (f *flows) check(entries map[*sender]entry, since time.Time) error {
	for s, e := range entries {
		if !f.isServing(e.server) || f.silenced[s] {
			return fmt.Errorf("%v reaches %v", s, e.server)
		}
	}
	names := map[string]bool{}
	for _, p := range f.pods {
		names[p.name] = true
	}
	for _, s := range f.senders {
		server, ok := s.served(since)
		switch isSilenced := f.silenced[s] || len(f.pods) == 0; {
		case isSilenced:
			if _, ok := s.served(time.Now().Add(-300 * time.Millisecond)); ok {
				return fmt.Errorf("%v gets replies of %s", s, server)
			}
		case !ok || !names[server]:
			return fmt.Errorf("%v gets no replies of %v (replies: %v, of %s)", s, slices.Sorted(maps.Keys(names)), ok, server)
		}
	}
	return nil
}

// replace starts a pod and stops the one that it replaces.
func (f *flows) replace(i int, on *node) {
	f.Helper()
	old := f.pods[i]
	f.pods[i] = f.c.startPod(f.service.Name, on)
	f.c.stopPod(old, 0)
}

func (f *flows) replaceEndpoints() {
	f.Helper()
	f.step("an endpoint is replaced", func() { f.replace(0, f.c.nodes[2]) })
	f.step("all endpoints are removed", func() {
		for _, p := range f.pods {
			f.c.stopPod(p, 0)
		}
		f.pods = nil
	})
	f.step("endpoints are added again", func() {
		f.pods = []*pod{f.c.startPod(f.service.Name, f.c.nodes[0]), f.c.startPod(f.service.Name, f.c.nodes[1])}
	})
}

// changeFrontends removes frontends, and adds some to which packets were sent before.
func (f *flows) changeFrontends() {
	f.Helper()
	before := f.senders[4:6]
	var fresh []*sender
	f.step("the node port changes", func() {
		port := f.service.Spec.Ports[udpPort].NodePort
		for isTaken := true; isTaken; {
			// A few dozen of 2768 ports are in use.
			port = 30000 + (port-30000+1)%2768
			fresh = f.sendToNodePort(port)
			time.Sleep(50 * time.Millisecond) // Some packets arrive before the frontend exists.
			err := f.patch(fmt.Sprintf(`[{"op": "replace", "path": "/spec/ports/%d/nodePort", "value": %d}]`, udpPort, port))
			if isTaken = err != nil; isTaken {
				f.Logf("node port %d: %v", port, err)
				f.wantSilence(fresh...)
			}
		}
		f.wantSilence(before...)
	})
	f.step("the external addresses are removed", func() {
		testenv.NoError(f, f.patch(`[{"op": "remove", "path": "/spec/externalIPs"}]`))
		f.wantSilence(f.senders[2:4]...)
	})
	f.step("the external addresses are added again", func() {
		text := fmt.Sprintf(`[{"op": "add", "path": "/spec/externalIPs", "value": [%q, %q]}]`, f.externalIPs()[0], f.externalIPs()[1])
		testenv.NoError(f, f.patch(text))
		delete(f.silenced, f.senders[2])
		delete(f.silenced, f.senders[3])
	})
}

func (f *flows) patch(text string) error {
	_, err := f.c.client.CoreV1().Services("default").Patch(context.Background(), f.service.Name, types.JSONPatchType, []byte(text), metav1.PatchOptions{})
	return err
}

// killAgent kills the agent before and during a change.
func (f *flows) killAgent() {
	f.Helper()
	f.step("an endpoint is replaced while no agent runs", func() {
		f.node.stopAgent(os.Kill)
		f.replace(0, f.c.nodes[2])
		f.node.startAgent(f.c.program)
	})
	f.step("an endpoint is replaced, and the agent is killed meanwhile", func() {
		f.replace(1, f.c.nodes[0])
		f.node.stopAgent(os.Kill)
		f.node.startAgent(f.c.program)
	})
}
