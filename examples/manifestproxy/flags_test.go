package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flags, want string }{
		{"", "-manifests or -demo is required"},
		{"-once", "-manifests or -demo is required"},
		{"-manifests m -backend lvs", `"lvs" for flag -backend: unknown backend: want iptables, ipvs, nftables, userspace`},
		{"-manifests m -backend ipvs -scheduler fast", `"fast" for flag -scheduler: unknown scheduler: want rr, wrr, lc, wlc,`},
		{"-manifests m -service-metrics -metrics-bind-address 127.0.0.1:1", "-service-metrics is for -backend ipvs"},
		{"-manifests m -service-metrics -backend ipvs", "with -metrics-bind-address"},
		{"-manifests m -ip-families ipv4,ipv5", `"ipv4,ipv5" for flag -ip-families: unknown family "ipv5": want ipv4, ipv6`},
		{"-manifests m -scheduler rr", "-scheduler is for -backend ipvs"},
		{"-manifests m -backend ipvs -capture redirect", "-capture is for -backend userspace"},
		{"-manifests m -once -backend userspace", "-once excludes this backend"},
		{"-manifests m -backend userspace -capture pcap", `"pcap" for flag -capture: unknown capture: want tproxy, redirect, addresses`},
		{"-manifests m -backend userspace -capture routes", `"routes" for flag -capture: routes, the capture by local routes and BPF, was removed: use tproxy, or redirect`},
		{"-manifests m -capture tproxy", "-capture is for -backend userspace"},
		{"-manifests m -netsh", "-interface and -netsh are for -backend userspace"},
		{"-manifests m -interface eth0 -backend ipvs", "-interface and -netsh are for -backend userspace"},
		{"-manifests m -drain 30s", "-drain is for -backend userspace"},
		{"-manifests m -backend userspace -drain=-1s", `"-1s" for flag -drain: it is negative`},
		{"-manifests m -once -cleanup", "exclude each other"},
		{"-manifests m -demo", "-demo excludes -manifests and -cleanup"},
		{"-demo -cleanup", "-demo excludes -manifests and -cleanup"},
		{"-demo -node-ip 192.0.2.1", "-demo excludes -node-ip, -cluster-cidr and -allocations"},
		{"-demo -cluster-cidr 10.0.0.0/8", "-demo excludes -node-ip, -cluster-cidr and -allocations"},
		{"-demo -allocations f", "-demo excludes -node-ip, -cluster-cidr and -allocations"},
		{"-manifests m n", `unexpected argument "n"`},
		{"-manifests m -cluster-cidr 10.0.0.0/8,10.1.0.0", `"10.0.0.0/8,10.1.0.0" for flag -cluster-cidr`},
		{"-manifests m -service-cidr 10.0.0.0/33", `"10.0.0.0/33" for flag -service-cidr`},
		{"-manifests m -node-ip 192.0.2.1,", `"192.0.2.1," for flag -node-ip`},
		{"-manifests m -node-ip localhost", `"localhost" for flag -node-ip: "localhost" is not an IP address`},
		{"-manifests m -service-cidr 10.96.0.0", `"10.96.0.0" for flag -service-cidr: "10.96.0.0" is not a CIDR such as 10.96.0.0/16 or fd00::/108`},
		{"-manifests m -node-ip fe80::1%eth0", "fe80::1%eth0 has a zone"},
		{"-manifests m -nodeport-addresses all,primary,all", `"all,primary,all" for flag -nodeport-addresses: [2]: the word "all" is repeated`},
		{"-manifests m -v=-1", `"-1" for flag -v`},
		{"-manifest m", "not defined: -manifest"},
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
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if status := run([]string{"-help"}, &out); status != 0 {
		t.Errorf("status: got %d, want 0", status)
	}
	for _, flag := range []string{
		"-backend", "-manifests", "-node", "-cluster-cidr", "-masquerade-all", "-nodeport-addresses", "-service-cidr",
		"-node-ip", "-allocations", "-demo", "-once", "-cleanup", "-drain", "-interface", "-netsh", "-scheduler", "-ip-families", "-v", "-healthz-bind-address", "-metrics-bind-address", "-service-metrics",
	} {
		if !strings.Contains(out.String(), "\n  "+flag) {
			t.Errorf("usage: got\n%s\nwant also %s", out.String(), flag)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	testenv.NoError(t, err)
	for _, c := range []struct {
		flags string
		want  options
	}{
		{"-manifests m", options{files: files{manifests: "m"}, tracker: proxy.TrackerOptions{NodeName: strings.ToLower(host)}}},
		{"-demo", options{files: files{demo: true}, tracker: proxy.TrackerOptions{NodeName: "node-1"}}},
		{"-demo -node n", options{files: files{demo: true}, tracker: proxy.TrackerOptions{NodeName: "n"}}},
		{"-cleanup -backend nftables", options{cleanup: true}},
		{"-cleanup -backend ipvs", options{cleanup: true, tracker: proxy.TrackerOptions{Annotations: []string{ipvs.SchedulerAnnotation}}}},
		{"-manifests m -node n -scheduler mh,mh-port -backend ipvs", options{files: files{manifests: "m"}, choices: choices{scheduler: "mh,mh-port"}, tracker: proxy.TrackerOptions{
			NodeName: "n", Annotations: []string{ipvs.SchedulerAnnotation},
		}}},
		{"-cleanup -healthz-bind-address :1 -metrics-bind-address :2", options{cleanup: true, healthz: ":1", metrics: ":2"}},
		{
			"-manifests m -node n -once -v 2 -masquerade-all -cluster-cidr 10.1.2.3/16,fd00::/64 -service-cidr 10.96.0.0/16 " +
				"-node-ip 192.0.2.1,::ffff:192.0.2.2,2001:db8::1 -nodeport-addresses 192.0.2.0/24,2001:db8::/32",
			options{files: files{manifests: "m"}, once: true, verbosity: 2, tracker: proxy.TrackerOptions{
				NodeName:          "n",
				MasqueradeAll:     true,
				LocalTraffic:      proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")}},
				ServiceCIDRs:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
				NodeAddresses:     []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1")},
				NodePortAddresses: proxy.NodePortAddresses{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}},
			}},
		},
		{"-manifests m -node n -nodeport-addresses primary", options{files: files{manifests: "m"}, tracker: proxy.TrackerOptions{NodeName: "n", NodePortAddresses: proxy.NodePortAddresses{Primary: true}}}},
		{"-manifests m -node n -ip-families ipv6", options{files: files{manifests: "m"}, choices: choices{families: []v1.IPFamily{v1.IPv6Protocol}}, tracker: proxy.TrackerOptions{NodeName: "n"}}},
		{"-manifests m -node n -local-fallback cluster", options{files: files{manifests: "m"}, tracker: proxy.TrackerOptions{NodeName: "n", LocalFallback: endpoints.FallbackCluster}}},
		{"-manifests m -node n -nodeport-addresses all", options{files: files{manifests: "m"}, tracker: proxy.TrackerOptions{
			NodeName: "n", NodePortAddresses: proxy.NodePortAddresses{All: true},
		}}},
	} {
		var out strings.Builder
		got, err := parseFlags(strings.Fields(c.flags), &out)
		if err != nil {
			t.Errorf("%s: %v\n%s", c.flags, err, out.String())
			continue
		}
		if got.files.allocations == "" {
			t.Errorf("%s: got no file for allocations, want one", c.flags)
		}
		got.files.allocations = ""
		if got.backend.open == nil {
			t.Errorf("%s: got no backend, want one", c.flags)
		}
		diff := cmp.Diff(c.want, got, cmp.AllowUnexported(options{}, files{}, choices{}), cmpopts.EquateComparable(userspace.AddressOptions{}), cmpopts.IgnoreFields(options{}, "backend"),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		if diff != "" {
			t.Errorf("%s: options (-want +got):\n%s", c.flags, diff)
		}
	}
}

// The garbage collector runs early, unless the environment says when.
func TestGOGC(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	for _, c := range []struct {
		env  string
		want int
	}{{"80", 100}, {"", 50}} {
		t.Setenv("GOGC", c.env)
		saveMemory()
		got := debug.SetGCPercent(100)
		if got != c.want {
			t.Errorf("GOGC=%s: got %d, want %d", c.env, got, c.want)
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

func TestOnceReturnsBackendErrors(t *testing.T) {
	t.Parallel()
	lost := errors.New("the connection was lost")
	port := proxy.ServicePortName{Port: "http"}
	for _, c := range []struct {
		name string
		// apply is the error of the backend, want that of once.
		apply, want error
	}{
		{"no error", nil, nil},
		{"nothing done", lost, lost},
		{"a port failed", fmt.Errorf("backend: %w", proxy.PortErrors{port: lost}), errIncomplete},
		{"unsupported", fmt.Errorf("backend: %w", proxy.ErrUnsupported), proxy.ErrUnsupported},
		{"a port is unsupported", proxy.PortErrors{port: proxy.ErrUnsupported}, errIncomplete},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
			syncs, lines := 0, 0
			log := funcr.New(func(_, args string) {
				if strings.Contains(args, lost.Error()) || strings.Contains(args, proxy.ErrUnsupported.Error()) {
					lines++
				}
			}, funcr.Options{})
			runner := &proxy.Runner{Source: tracker, Backend: failing{err: c.apply}, Logger: log, Observers: []proxy.Observer{{Synced: func(proxy.Sync) { syncs++ }}}}
			err := once(t.Context(), &manifest.Source{Path: "demo", Handler: tracker, Observe: func(manifest.Summary) {}}, runner)
			if !errors.Is(err, c.want) {
				t.Errorf("once: got error %v, want %v", err, c.want)
			}
			if want := c.want == errIncomplete; (lines == 1) != want || lines > 1 { //nolint:errorlint // it is the table's
				t.Errorf("lines with the error: got %d, want one only if once does not return it, %t", lines, want)
			}
			if syncs != 1 {
				t.Errorf("syncs: got %d, want one", syncs)
			}
		})
	}
}

func TestOnceInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	runner := &proxy.Runner{Source: tracker, Backend: failing{}, Observers: []proxy.Observer{{Synced: func(proxy.Sync) { t.Error("got a sync, want none") }}}}
	if err := once(ctx, &manifest.Source{Path: "demo", Handler: tracker, Observe: func(manifest.Summary) {}}, runner); !errors.Is(err, context.Canceled) {
		t.Errorf("once: got error %v, want %v", err, context.Canceled)
	}
}
