package iptables

import (
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// A new process that finds the rules of one service port too many removes these by their
// text, whatever kind of port it is, and does not write the chains again that have rules of
// many ports.
func TestLeftoversOfOnePort(t *testing.T) {
	t.Parallel()
	eachFlavour(t, func(t *testing.T, s *stage) {
		for _, removed := range slices.Collect(sampleSnapshot().All()) {
			all := append(newPorts(removed.Name.Family, 100, 1)[20:], removed)
			most := s.operationsOf(t, proxy.NewSnapshot(stagetest.Node(), removed)) - s.operationsOf(t, proxy.NewSnapshot(stagetest.Node()))
			s.Restart(t)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
			s.Restart(t)
			s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all[:80]...))
			if got := s.Operations(t); got == 0 || got > most {
				t.Errorf("%v: operations that remove it: got %d, want at least one and at most %d, as for adding it", removed.Name, got, most)
			}
		}
	})
}

// operationsOf returns the number of operations of a first load.
func (s *stage) operationsOf(t *testing.T, w proxy.Snapshot) uint64 {
	t.Helper()
	fresh := newStage(t, s.Options)
	fresh.Apply(t, w)
	return fresh.Operations(t)
}

// The first Apply of an identity that adopts the chains of kube-proxy, and Cleanup, remove the
// canaries of kube-proxy in all tables. Those of the kubelet stay.
func TestCanariesOfKubeProxy(t *testing.T) {
	t.Parallel()
	for _, f := range flavours() {
		s := newStage(t, Options{Flavour: f, Identity: backends.Identity{Name: "kube"}})
		for name, do := range map[string]func() error{
			"the first Apply": func() error { s.Restart(t); s.Apply(t, sampleSnapshot()); return nil },
			"Cleanup":         func() error { return s.Backend.Cleanup(t.Context()) },
		} {
			for _, table := range []string{"nat", "filter", "mangle"} {
				s.run(t, "*"+table+"\n:KUBE-PROXY-CANARY - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n", "iptables-restore", "--noflush", "-w", "5")
			}
			if err := do(); err != nil {
				t.Errorf("%s: %s: %v", f, name, err)
			}
			left := s.run(t, "", "iptables-save")
			if strings.Contains(left, "KUBE-PROXY-CANARY") || strings.Count(left, ":KUBE-KUBELET-CANARY") != 3 {
				t.Errorf("%s: after %s: got\n%s\nwant no canary of kube-proxy, and those of the kubelet", f, name, left)
			}
		}
	}
}
