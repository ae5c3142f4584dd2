package iptables

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A chain that has the name of one of the kernel's own chains, and that iptables cannot use, is named in an
// error. Once it is removed, an Apply repairs the rules.
func TestUnusableChainOfHook(t *testing.T) {
	t.Parallel()
	for _, chain := range []string{"{ }", "{ type nat hook output priority -90; }"} {
		s := newStage(t, Options{Flavour: NFT})
		s.Apply(t, sampleSnapshot())
		want := s.effectiveRules(t)
		const remove = "flush chain ip nat OUTPUT\ndelete chain ip nat OUTPUT\n"
		s.nft(t, remove+"add chain ip nat OUTPUT "+chain+"\n")
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, sampleSnapshot())
		if err == nil || !strings.Contains(err.Error(), "chain OUTPUT") || errors.As(err, new(proxy.PortErrors)) {
			t.Errorf("%s: got error %v, want one that names the chain, and no PortErrors", chain, err)
		}
		s.nft(t, remove)
		s.Applied = proxy.Snapshot{}
		s.Apply(t, sampleSnapshot())
		if diff := cmp.Diff(want, s.effectiveRules(t)); diff != "" {
			t.Errorf("%s: rules (-first load +repaired):\n%s", chain, diff)
		}
	}
}

// Rules returns an error that names the service ports that cannot be programmed, and the rules
// of all others.
func TestRulesWithoutFaulty(t *testing.T) {
	t.Parallel()
	o := Options{}
	good, mixed := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 1, 1)
	want, err := Rules(o, v1.IPv4Protocol, proxy.NewSnapshot(&proxy.Node{}, good))
	testenv.NoError(t, err)
	mixed.Cluster = append(mixed.Cluster, stagetest.Endpoint(v1.IPv6Protocol, 1, 8080))
	got, err := Rules(o, v1.IPv4Protocol, proxy.NewSnapshot(&proxy.Node{}, good, mixed))
	failed, _ := errors.AsType[proxy.PortErrors](err)
	if len(failed) != 1 || failed[mixed.Name] == nil {
		t.Errorf("Rules: got error %v, want one that names %s alone", err, mixed.Name)
	}
	testenv.Same(t, want, got, "rules of the other ports")
	bad := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "two words"}}
	if got, err := Rules(o, v1.IPv4Protocol, proxy.NewSnapshot(bad, good)); got != "" || err == nil {
		t.Errorf("an interface name with a space: got %q and error %v, want an error alone", got, err)
	}
}

// Without rules for the options and the snapshot, Rules returns an error or "".
func TestRulesWithoutResult(t *testing.T) {
	t.Parallel()
	snapshot := proxy.NewSnapshot(&proxy.Node{}, newPort(v1.IPv4Protocol, 0, 2))
	if got, err := Rules(Options{Flavour: "unknown"}, v1.IPv4Protocol, snapshot); got != "" || err == nil {
		t.Errorf("an unknown flavour: got %q and error %v, want an error alone", got, err)
	}
	for what, c := range map[string]struct {
		options  Options
		snapshot proxy.Snapshot
	}{"zero snapshot": {Options{}, proxy.Snapshot{}}, "another family": {Options{Families: []v1.IPFamily{v1.IPv6Protocol}}, snapshot}} {
		if got, err := Rules(c.options, v1.IPv4Protocol, c.snapshot); got != "" || err != nil {
			t.Errorf("%s: got %q and error %v, want neither", what, got, err)
		}
	}
}

// The first Apply of an identity that adopts the chains of kube-proxy, and Cleanup, remove the
// canaries of kube-proxy in the tables that the identity uses. The canaries of the kubelet stay.
func TestCanariesOfKubeProxy(t *testing.T) {
	t.Parallel()
	for _, f := range flavours() {
		s := newStage(t, Options{Flavour: f, Identity: backends.Identity{Name: "kube"}})
		for name, do := range map[string]func() error{
			"the first Apply": func() error { s.Restart(t); s.Apply(t, sampleSnapshot()); return nil },
			"Cleanup":         func() error { return s.Backend.Cleanup(t.Context()) },
		} {
			for _, table := range []string{"nat", "filter"} {
				s.run(t, "*"+table+"\n:KUBE-PROXY-CANARY - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
			}
			if err := do(); err != nil {
				t.Errorf("%s: %s: %v", f, name, err)
			}
			left := s.run(t, "", "iptables-save")
			if strings.Contains(left, "KUBE-PROXY-CANARY") || strings.Count(left, ":KUBE-KUBELET-CANARY") != 2 {
				t.Errorf("%s: after %s: got\n%s\nwant no canary of kube-proxy, and those of the kubelet", f, name, left)
			}
		}
	}
}
