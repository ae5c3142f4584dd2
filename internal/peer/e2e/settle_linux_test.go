package e2e_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// endpoints counts the ready endpoints in the slices of Services that select pods, by Service
// and pod.
func (c *cluster) endpoints() (named map[[2]string]int, err error) {
	list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	named = map[[2]string]int{}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.TargetRef != nil && *e.Conditions.Ready {
				named[[2]string{s.Labels[discoveryv1.LabelServiceName], e.TargetRef.Name}]++
			}
		}
	}
	return named, nil
}

// isUnready returns an error while a slice has a terminating pod as ready.
func (c *cluster) isUnready(p *pod) error {
	named, err := c.endpoints()
	for key := range named {
		if key[1] == p.name {
			return fmt.Errorf("the slices of %s have it as ready", key[0])
		}
	}
	return err
}

// slicesMatchPods returns an error while the slices differ from the existing pods.
func (c *cluster) slicesMatchPods() error {
	list, err := c.client.CoreV1().Services("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	services, want := map[string]bool{}, map[[2]string]int{}
	for _, s := range list.Items {
		services[s.Name] = true
		for _, p := range c.pods {
			if p.app == s.Spec.Selector["app"] {
				want[[2]string{s.Name, p.name}] = len(s.Spec.ClusterIPs)
			}
		}
	}
	got, err := c.endpoints()
	// No garbage collector deletes the slices of deleted Services.
	maps.DeleteFunc(got, func(key [2]string, _ int) bool { return !services[key[0]] })
	if err == nil && !maps.Equal(got, want) {
		err = fmt.Errorf("got endpoints %v, want %v", got, want)
	}
	return err
}

// awaitApplied waits until all changes are applied: the slices match the pods, and every agent
// reports that its kernel has a Service that was created after that. A connection to that
// Service would prove less: it succeeds before the last transaction of the change is written.
func (c *cluster) awaitApplied(t *testing.T) {
	t.Helper()
	eventually(t, "the slices match the pods", c.slicesMatchPods)
	c.markers++
	name, p := fmt.Sprintf("marker-%d", c.markers), c.webPods(c.nodes...)[0]
	s, err := c.client.CoreV1().Services("default").Create(t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	testenv.NoError(t, err)
	slice := objects.Slice(name, name, p.addresses[0].Addr().String()+" R")
	slice.Ports = objects.SlicePorts(fmt.Sprint(podPort))
	_, err = c.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{})
	testenv.NoError(t, err)
	to, at := clusterIPs(s)[0], netip.AddrPortFrom(p.addresses[0].Addr(), podPort).String()
	for _, n := range c.nodes {
		eventually(t, fmt.Sprintf("the kernel of %s forwards %v to %s", n.name, to, at), func() error {
			status, body, err := get(n.ns, fmt.Sprintf("http://127.0.0.1:10249/debug/services?protocol=TCP&destination=%v", to))
			if err == nil && (!strings.Contains(body, `<p><span class="forward">forward</span>`) || !strings.Contains(body, at)) {
				err = fmt.Errorf("got status %d: %s", status, body)
			}
			return err
		})
	}
}

// generation returns the number of a node's ruleset: any commit changes it.
func generation(t *testing.T, n *node) (number uint32) {
	t.Helper()
	err := n.ns.Do(func() error {
		conn, err := nfnetlink.Open()
		if err != nil {
			return err
		}
		number, err = conn.Generation(t.Context())
		_ = conn.Close() // An error does not matter.
		return err
	})
	testenv.NoError(t, err)
	return number
}

// listenToTables returns a socket with the notifications of changes in nf_tables of a namespace.
func listenToTables(ns *netns.NS) (socket *nl.NetlinkSocket, err error) {
	err = ns.Do(func() error {
		socket, err = nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		if err == nil {
			const room = 64 << 20 // More notifications would be lost.
			err = socket.SetReceiveBufferSize(room, true)
		}
		return err
	})
	return socket, err
}

// wantNoRules checks that no rules of kube-proxy or of an agent remain. The kubelet has the chain
// KUBE-FIREWALL, too, and in the table mangle kube-proxy has an empty chain without a jump to it.
func (n *node) wantNoRules(t *testing.T, nft string) {
	t.Helper()
	table := ""
	for line := range strings.Lines(n.tables(nft)) {
		if strings.HasPrefix(line, "table ") {
			table = line
		}
		isOurs := strings.Contains(line, "KUBE-") || strings.Contains(line, "kube-proxy") || strings.Contains(line, "vipkit")
		if isOurs && !strings.Contains(line, "KUBE-FIREWALL") && !strings.Contains(table, " mangle ") {
			t.Errorf("rules of %s after a cleanup: got %sin %s, want none", n.name, line, table)
		}
	}
}
