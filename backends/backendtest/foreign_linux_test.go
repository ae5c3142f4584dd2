package backendtest

import (
	"maps"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// What a backend may leave behind is among what the law of Cleanup compares; what this kernel
// cannot have is left out.
func TestLeftObjectsAreSeen(t *testing.T) {
	s := &stage{testbed: setUp(t)}
	bare, known := s.objects(t), s.links(t)
	s.addForeign(t)
	theirs, settings := s.foreign(t), s.settings(t)
	leave := map[string]func(){
		"a device":          func() { must(t, s.node().AddBridge("own0")) },
		"an address":        func() { must(t, s.node().AddAddress("own0", cluster.Single(cluster.Addrs("203.0.113.7")[0]))) },
		"a set":             func() { s.runAtNode(t, "", "ipset", "create", "OWN", "hash:ip") },
		"an entry of a set": func() { s.runAtNode(t, "", "ipset", "add", "OWN", "203.0.113.7") },
		"a virtual server":  func() { s.runAtNode(t, "", "ipvsadm", "-A", "-t", "203.0.113.7:80", "-s", "rr") },
		"a real server":     func() { s.runAtNode(t, "", "ipvsadm", "-a", "-t", "203.0.113.7:80", "-r", "10.0.0.5:80", "-m") },
		"a weight": func() {
			s.runAtNode(t, "", "ipvsadm", "-e", "-t", "203.0.113.7:80", "-r", "10.0.0.5:80", "-m", "-w", "0")
		},
		"a parameter": func() { must(t, s.node().Sysctl("net/ipv4/conf/all/arp_ignore", "1")) },
	}
	possible := []string{"a device", "an address"}
	if s.hasSets(t) {
		possible = append(possible, "a set", "an entry of a set")
	}
	if s.hasIPVS(t) {
		possible = append(possible, "a virtual server", "a real server", "a weight")
	}
	for _, what := range possible {
		before := s.everything(t)
		leave[what]()
		if slices.Equal(s.everything(t), before) {
			t.Errorf("%s was left behind: got no difference, want one", what)
		}
	}
	leave["a parameter"]()
	if maps.Equal(settings, s.settings(t)) {
		t.Error("a kernel parameter was changed: got no difference, want one")
	}
	if got := s.foreign(t); got != theirs {
		t.Errorf("foreign objects: got %q, want those of before: %q", got, theirs)
	}
	s.removeObjects(t, known)
	if left := s.objects(t); !slices.Equal(left, bare) {
		t.Errorf("objects after all were removed: got %q, want %q", left, bare)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	testenv.NoError(t, err)
}
