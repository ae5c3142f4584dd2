package iptables

import (
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
)

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
