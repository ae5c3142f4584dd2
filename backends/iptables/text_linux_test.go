package iptables

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules of the other ports (-want +got):\n%s", diff)
	}
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
