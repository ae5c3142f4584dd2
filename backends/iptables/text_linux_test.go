package iptables

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// What cannot be programmed is named, beside the rules of all others.
func TestRulesWithoutFaulty(t *testing.T) {
	o := Options{AffinityClients: 100}
	good, mixed := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 1, 1)
	want, err := Rules(o, v1.IPv4Protocol, proxy.NewSnapshot(&proxy.Node{}, good))
	if err != nil {
		t.Fatal(err)
	}
	mixed.Cluster = append(mixed.Cluster, stagetest.Endpoint(v1.IPv6Protocol, 1, 8080))
	got, err := Rules(o, v1.IPv4Protocol, proxy.NewSnapshot(&proxy.Node{}, good, mixed))
	failed, _ := errors.AsType[proxy.PortErrors](err)
	if len(failed) != 1 || failed[mixed.Name] == nil {
		t.Errorf("got error %v, want one that names %s alone", err, mixed.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the rules of the others (-want +got):\n%s", diff)
	}
	bad := &proxy.Node{LocalTraffic: proxy.LocalTraffic{Interface: "two words"}}
	if got, err := Rules(o, v1.IPv4Protocol, proxy.NewSnapshot(bad, good)); got != "" || err == nil {
		t.Errorf("an interface with a blank: got %q and error %v, want an error alone", got, err)
	}
}

// What is asked for in vain is an error, or nothing.
func TestRulesOfNothing(t *testing.T) {
	world := proxy.NewSnapshot(&proxy.Node{}, newPort(v1.IPv4Protocol, 0, 2))
	if got, err := Rules(Options{Flavour: "odd"}, v1.IPv4Protocol, world); got != "" || err == nil {
		t.Errorf("an odd flavour: got %q and error %v, want an error alone", got, err)
	}
	for what, c := range map[string]struct {
		options Options
		world   proxy.Snapshot
	}{"nothing known": {Options{}, proxy.Snapshot{}}, "another family": {Options{Families: []v1.IPFamily{v1.IPv6Protocol}}, world}} {
		if got, err := Rules(c.options, v1.IPv4Protocol, c.world); got != "" || err != nil {
			t.Errorf("%s: got %q and error %v, want neither", what, got, err)
		}
	}
}

// No kernel is asked how many clients it remembers.
func TestRulesWithAffinity(t *testing.T) {
	port := newPort(v1.IPv4Protocol, 0, 2)
	port.Affinity.Timeout = time.Minute
	if _, err := Rules(Options{AffinityClients: 1000}, v1.IPv4Protocol, proxy.NewSnapshot(&proxy.Node{}, port)); err != nil {
		t.Errorf("got error %v, want none", err)
	}
}
