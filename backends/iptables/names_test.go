package iptables

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

func nameOf(namespace, name, port string) proxy.ServicePortName {
	return proxy.ServicePortName{
		NamespacedName: types.NamespacedName{Namespace: namespace, Name: name},
		Port:           port, Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol,
	}
}

// With the identity "kube", chains have the names that operators know.
func TestKnownNames(t *testing.T) {
	n := newNames("kube")
	for want, got := range map[string]string{
		"KUBE-SERVICES":             n.chain(chainServices),
		"KUBE-SVC-XPGD46QRK7WJZT7O": n.of(prefixCluster, nameOf("ns1", "svc1", "p80"), 0),
		"KUBE-SVL-XPGD46QRK7WJZT7O": n.of(prefixLocal, nameOf("ns1", "svc1", "p80"), 0),
		"KUBE-EXT-XPGD46QRK7WJZT7O": n.of(prefixExternal, nameOf("ns1", "svc1", "p80"), 0),
	} {
		if got != want {
			t.Errorf("got chain %s, want %s", got, want)
		}
	}
	if a, b := n.of(prefixFirewall, nameOf("a", "b", ""), 0), n.of(prefixFirewall, nameOf("a", "b", ""), 1); a == b {
		t.Errorf("two chains of one kind are both called %s", a)
	}
}

// The kernel takes names of 28 characters, and identities have up to 24.
func TestNamesAreShortEnough(t *testing.T) {
	seen := map[string]string{}
	for _, identity := range []string{"a", "vipkit", "sevenab", "eightabc", "eightabd", strings.Repeat("x", 24)} {
		n := newNames(identity)
		if other, twice := seen[n.prefix]; twice {
			t.Errorf("identities %s and %s have one prefix: %s", identity, other, n.prefix)
		}
		seen[n.prefix] = identity
		if want := strings.ToUpper(identity)[:min(len(identity), 2)]; !strings.HasPrefix(n.prefix, want) || len(n.prefix) > longestPrefix+1 {
			t.Errorf("identity %s has the prefix %s, want one that begins with %s, of up to %d characters", identity, n.prefix, want, longestPrefix+1)
		}
		if want := strings.ToUpper(identity) + "-"; len(identity) <= longestPrefix && n.prefix != want {
			t.Errorf("identity %s has the prefix %s, want %s", identity, n.prefix, want)
		}
		if len(identity) > longestPrefix && len(n.prefix) != longestPrefix+1 {
			t.Errorf("identity %s has the prefix %s, want one of %d characters", identity, n.prefix, longestPrefix+1)
		}
		for _, name := range []string{
			n.of(prefixCluster, nameOf("ns", "svc", ""), 0), n.of(prefixFirewall, nameOf("ns", "svc", ""), 2),
			n.chain(chainExternalServices), n.chain(chainMarkNonPods),
		} {
			if len(name) > 28 {
				t.Errorf("identity %s: chain %s has %d characters, want at most 28", identity, name, len(name))
			}
			if !n.owns(nat, name) && !n.owns(filter, name) {
				t.Errorf("identity %s does not know its chain %s", identity, name)
			}
		}
	}
}

// One identity may begin like another one, or like a part of its chains.
func TestOwnership(t *testing.T) {
	for _, c := range []struct {
		identity, chain string
		table           table
		want            bool
	}{
		{"vipkit", "VIPKIT-SERVICES", nat, true},
		{"vipkit", "VIPKIT-SERVICES", filter, true},
		{"vipkit", "VIPKIT-POSTROUTING", filter, false},
		{"vipkit", "VIPKIT-SVC-XPGD46QRK7WJZT7O", nat, true},
		{"vipkit", "VIPKIT-SVC-XPGD46QRK7WJZT7", nat, false},
		{"vipkit", "VIPKIT-SVC-xpgd46qrk7wjzt7o", nat, false},
		{"vipkit", "KUBE-SVC-XPGD46QRK7WJZT7O", nat, false},
		{"vipkit", "VIPKITX-SERVICES", nat, false},
		{"vipkit", "VIPKIT-HANDMADE", nat, false},
		{"kube", "KUBE-SEP-XPGD46QRK7WJZT7O", nat, true},
		{"kube", "KUBE-PROXY-CANARY", nat, true},
		{"kube", "KUBE-PROXY-CANARY", filter, true},
		{"kube", "KUBE-FIREWALL", filter, false},
		{"kube", "KUBE-KUBELET-CANARY", nat, false},
		{"a", "A-SVC-SVC-XPGD46QRK7WJZT7O", nat, false},
		{"a-svc", "A-SVC-SVC-XPGD46QRK7WJZT7O", nat, true},
		{"a-svc", "A-SVC-XPGD46QRK7WJZT7O", nat, false},
	} {
		if got := newNames(c.identity).owns(c.table, c.chain); got != c.want {
			t.Errorf("identity %s owns %s of table %s: got %t, want %t", c.identity, c.chain, c.table, got, c.want)
		}
	}
}
