package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flags, want string }{
		{"", "one of -manifests, -demo and -cleanup is required"},
		{"-manifests m -demo", "one of -manifests, -demo and -cleanup is required"},
		{"-cleanup -once", "-once is for -manifests"},
		{"-manifests m -once -backend userspace", "-once excludes the backend userspace"},
		{"-manifests m n", `unexpected argument "n"`},
		{"-manifests m -cluster-cidr 10.0.0.0/8,10.1.0.0", `"10.0.0.0/8,10.1.0.0" for flag -cluster-cidr`},
		{"-manifests m -node-ip 192.0.2.1,", `"192.0.2.1," for flag -node-ip`},
		{"-manifests m -nodeport-addresses all,primary,all", `"all,primary,all" for flag -nodeport-addresses: [2]: the word "all" is repeated`},
		{"-manifests m -nodeport-addresses localhost", "only examples/kubeproxy serves node ports at loopback addresses"},
	} {
		t.Run(c.flags, func(t *testing.T) {
			var out strings.Builder
			if status := run(strings.Fields(c.flags), &out); status != 2 {
				t.Errorf("status: got %d, want 2", status)
			}
			if got := out.String(); !strings.Contains(got, c.want) || !strings.Contains(got, "\nUsage of manifestproxy:\n") {
				t.Errorf("output: got\n%s\nwant %s, and the usage", got, c.want)
			}
		})
	}
	var out strings.Builder
	if status := run([]string{"-manifests", "m", "-backend", "lvs"}, &out); status != 1 || !strings.Contains(out.String(), "want iptables, ipvs, nftables or userspace") {
		t.Errorf("-backend lvs: got status %d and %s, want 1 and the names of the backends", status, out.String())
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	testenv.NoError(t, err)
	for _, c := range []struct {
		flags string
		want  proxy.TrackerOptions
	}{
		{"-manifests m", proxy.TrackerOptions{NodeName: strings.ToLower(host)}},
		{"-cleanup -backend ipvs", proxy.TrackerOptions{Annotations: []string{ipvs.SchedulerAnnotation}}},
		{
			"-manifests m -node n -cluster-cidr 10.1.2.3/16,fd00::/64 -service-cidr 10.96.0.0/16 " +
				"-node-ip 192.0.2.1,2001:db8::1 -nodeport-addresses 192.0.2.0/24,2001:db8::/32",
			proxy.TrackerOptions{
				NodeName:          "n",
				LocalTraffic:      proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}},
				ServiceCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
				NodeAddresses:     []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
				NodePortAddresses: proxy.NodePortAddresses{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}},
			},
		},
	} {
		var out strings.Builder
		got, err := parseFlags(strings.Fields(c.flags), &out)
		testenv.NoError(t, err)
		if diff := cmp.Diff(c.want, got.tracker, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Errorf("%s: options (-want +got):\n%s", c.flags, diff)
		}
	}
}

// failing is a backend whose Apply fails.
type failing struct {
	proxy.NoAbilities
	err error
}

func (f failing) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error { return f.err }

func (f failing) Cleanup(context.Context) error { return f.err }

// TestOnceReturnsErrors checks what -once returns after an error of the backend, or with a document
// that cannot be read.
func TestOnceReturnsErrors(t *testing.T) {
	t.Parallel()
	lost, bad := errors.New("the connection was lost"), filepath.Join(t.TempDir(), "bad.yaml")
	testenv.NoError(t, os.WriteFile(bad, []byte("apiVersion: v1\nkind: Service\n"), 0o600))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name, path string
		ctx        context.Context
		// apply is the error of the backend, want the one of once.
		apply, want error
	}{
		{"no error", "demo", t.Context(), nil, nil},
		{"nothing done", "demo", t.Context(), lost, lost},
		{"a port failed", "demo", t.Context(), proxy.PortErrors{{Port: "http"}: lost}, lost},
		{"unsupported", "demo", t.Context(), proxy.ErrUnsupported, proxy.ErrUnsupported},
		{"a bad document", bad, t.Context(), nil, errIncomplete},
		{"interrupted", "demo", ended, nil, context.Canceled},
	} {
		tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
		runner := &proxy.Runner{Source: tracker, Backend: failing{err: c.apply}}
		if err := once(c.ctx, &manifest.Watcher{Path: c.path, Handler: tracker}, runner); !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.want)
		}
	}
}
