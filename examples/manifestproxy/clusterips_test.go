package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// newClusterIPs returns an allocator that is closed with the test.
func newClusterIPs(t *testing.T, path string, ranges ...string) *clusterIPs {
	t.Helper()
	c := &clusterIPs{Handler: proxy.NewServiceChangeTracker(proxy.TrackerOptions{}), log: logr.Discard(), path: path}
	for _, r := range ranges {
		c.ranges = append(c.ranges, netip.MustParsePrefix(r))
	}
	testenv.CloseAtEnd(t, closer(c.close))
	return c
}

type closer func() error

func (c closer) Close() error { return c() }

func plainService(name string, change func(*v1.ServiceSpec)) *v1.Service {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

// mustAssign assigns the ClusterIPs of a Service and returns them.
func mustAssign(t *testing.T, c *clusterIPs, s *v1.Service) []string {
	t.Helper()
	if err := c.assign(t.Context(), s); err != nil {
		t.Fatalf("assign %s: %v", s.Name, err)
	}
	if s.Spec.ClusterIP != s.Spec.ClusterIPs[0] || len(s.Spec.IPFamilies) != len(s.Spec.ClusterIPs) {
		t.Errorf("%s: got clusterIP %s, clusterIPs %v, ipFamilies %v, want them to agree", s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies)
	}
	return s.Spec.ClusterIPs
}

// TestAssignLasts checks that a Service keeps its ClusterIP when the program starts anew, that no
// other one gets it before the Service is deleted, and that the log shows it.
func TestAssignLasts(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "allocations")
	var lines []string
	c := newClusterIPs(t, path, "10.96.0.0/30") // two addresses
	c.log = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	first := mustAssign(t, c, plainService("web", nil))
	if len(lines) != 1 || !strings.Contains(lines[0], first[0]) || !strings.Contains(lines[0], "default/web") || !strings.Contains(lines[0], strconv.Quote(path)) {
		t.Errorf("log: got %q, want a line with Service, address and file", lines)
	}
	testenv.NoError(t, c.close())
	c = newClusterIPs(t, path, "10.96.0.0/30")
	other := mustAssign(t, c, plainService("api", nil))
	if again := mustAssign(t, c, plainService("web", nil)); !slices.Equal(again, first) {
		t.Errorf("web after a new start: got %v, want %v", again, first)
	}
	third := plainService("third", nil)
	if err := c.assign(t.Context(), third); err == nil || !strings.Contains(err.Error(), "10.96.0.0/30") {
		t.Errorf("third: got %v, error %v, want an error with the full range", third.Spec.ClusterIPs, err)
	}
	c.DeleteService(types.NamespacedName{Namespace: "default", Name: "api"})
	if got := mustAssign(t, c, third); !slices.Equal(got, other) {
		t.Errorf("third: got %v, want the address that became free, %v", got, other)
	}
}

// TestAssignAvoidsNamedAddresses checks that an address that a file names is not allocated, and
// that a Service gives back what it got when its file names one.
func TestAssignAvoidsNamedAddresses(t *testing.T) {
	t.Parallel()
	c := newClusterIPs(t, filepath.Join(t.TempDir(), "allocations"), "10.96.0.0/30")
	name := func(s *v1.ServiceSpec) { s.ClusterIP = "10.96.0.1" }
	testenv.NoError(t, c.assign(t.Context(), plainService("named", name)))
	if got := mustAssign(t, c, plainService("web", nil)); got[0] != "10.96.0.2" {
		t.Errorf("web: got %v, want the address that no file names", got)
	}
	testenv.NoError(t, c.assign(t.Context(), plainService("web", func(s *v1.ServiceSpec) { s.ClusterIP = "192.0.2.1" })))
	if got := mustAssign(t, c, plainService("api", nil)); got[0] != "10.96.0.2" {
		t.Errorf("api: got %v, want the address that web gave back", got)
	}
}

func TestAssignFamilies(t *testing.T) {
	t.Parallel()
	families := func(policy v1.IPFamilyPolicy, all ...v1.IPFamily) func(*v1.ServiceSpec) {
		return func(s *v1.ServiceSpec) { s.IPFamilyPolicy, s.IPFamilies = &policy, all }
	}
	both, four := []string{"10.96.0.0/24", "fd00::/64"}, []string{"10.96.0.0/24"}
	for name, c := range map[string]struct {
		ranges []string
		change func(*v1.ServiceSpec)
		want   string // 4 or 6 for each address, or an error
	}{
		"default":             {both, nil, "4"},
		"first range":         {[]string{"fd00::/112", "10.96.0.0/24"}, nil, "6"},
		"single":              {both, families(v1.IPFamilyPolicySingleStack, v1.IPv6Protocol), "6"},
		"prefer":              {both, families(v1.IPFamilyPolicyPreferDualStack), "46"},
		"prefer, first 6":     {both, families(v1.IPFamilyPolicyPreferDualStack, v1.IPv6Protocol), "64"},
		"prefer, one range":   {four, families(v1.IPFamilyPolicyPreferDualStack), "4"},
		"require":             {both, families(v1.IPFamilyPolicyRequireDualStack), "46"},
		"require, one range":  {four, families(v1.IPFamilyPolicyRequireDualStack), "spec.ipFamilyPolicy needs both families"},
		"a family without it": {four, families(v1.IPFamilyPolicySingleStack, v1.IPv6Protocol), "spec.ipFamilies needs IPv6"},
		"no range":            {nil, nil, "set it, or give -service-cidr"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newClusterIPs(t, filepath.Join(t.TempDir(), "allocations"), c.ranges...)
			s := plainService("web", c.change)
			err := a.assign(t.Context(), s)
			got := ""
			for _, text := range s.Spec.ClusterIPs {
				if netip.MustParseAddr(text).Is4() {
					got += "4"
				} else {
					got += "6"
				}
			}
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, c.want) || err == nil && got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestAssignWaitsForTheFile checks that a Service gets its ClusterIP when another process has
// closed the file.
func TestAssignWaitsForTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "allocations")
	busy, err := filestore.Open(path)
	testenv.NoError(t, err)
	c := newClusterIPs(t, path, "10.96.0.0/24")
	s := plainService("web", nil)
	if err := c.assign(t.Context(), s); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("with a locked file: got error %v, want one that names %s", err, path)
	}
	testenv.NoError(t, busy.Close())
	mustAssign(t, c, s)
}

var _ manifest.Handler = (*clusterIPs)(nil)

// plainManifest is a Service without ClusterIP in YAML.
func plainManifest(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: default}\nspec: {ports: [{port: 80}]}\n", name)
}

// writeManifests writes files into a new folder and returns it.
func writeManifests(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		testenv.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	return folder
}

// leftover returns a file in which all addresses of 10.96.0.0/30 belong to the Services web and old.
func leftover(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "allocations")
	c := newClusterIPs(t, path, "10.96.0.0/30")
	mustAssign(t, c, plainService("web", nil))
	mustAssign(t, c, plainService("old", nil))
	testenv.NoError(t, c.close())
	return path
}

// hasOwner reports whether a Service has an address.
func hasOwner(c *clusterIPs, name string) bool {
	for _, claim := range c.pool.Claims() {
		if claim.Owner == owner(types.NamespacedName{Namespace: "default", Name: name}) {
			return true
		}
	}
	return false
}

// TestDeletedServices has a Service that was deleted while the program did not run. Its address
// is freed after the first pass that could read everything, and not before.
func TestDeletedServices(t *testing.T) {
	t.Parallel()
	named := "apiVersion: v1\nkind: Service\nmetadata: {name: old, namespace: default}\nspec: {clusterIP: 10.9.9.9, ports: [{port: 80}]}\n"
	for name, c := range map[string]struct {
		files  map[string]string
		isFree bool
	}{
		"deleted":                {map[string]string{"web.yaml": plainManifest("web")}, true},
		"all deleted":            {map[string]string{"new.yaml": plainManifest("new")}, true},
		"there":                  {map[string]string{"web.yaml": plainManifest("web"), "old.yaml": plainManifest("old")}, false},
		"there with an address":  {map[string]string{"web.yaml": plainManifest("web"), "old.yaml": named}, true},
		"there without a family": {map[string]string{"web.yaml": plainManifest("web"), "old.yaml": plainManifest("old") + "  ipFamilies: [IPv6]\n"}, false},
		"a broken document":      {map[string]string{"web.yaml": plainManifest("web"), "old.yaml": "kind: ["}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newClusterIPs(t, leftover(t), "10.96.0.0/30")
			source := newSource(options{files: files{manifests: writeManifests(t, c.files)}}, a, newJournal(logr.Discard()))
			_ = source.Load(t.Context()) // It has errors in some cases.
			if got := hasOwner(a, "old"); got == c.isFree {
				t.Errorf("the address of old: got held %t, want %t", got, !c.isFree)
			}
		})
	}
}

// TestNoServices checks that nothing is freed if there is no Service at all.
func TestNoServices(t *testing.T) {
	t.Parallel()
	a := newClusterIPs(t, leftover(t), "10.96.0.0/30")
	testenv.NoError(t, a.open(t.Context()))
	a.observed(manifest.Summary{})
	if !hasOwner(a, "old") || !hasOwner(a, "web") {
		t.Error("got addresses freed, want them kept")
	}
}

// TestOnceWithAFullFile checks that -once gives a Service an address that a deleted one had.
func TestOnceWithAFullFile(t *testing.T) {
	t.Parallel()
	a := newClusterIPs(t, leftover(t), "10.96.0.0/30")
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "node-1"})
	a.Handler = tracker
	folder := writeManifests(t, map[string]string{"new.yaml": plainManifest("new"), "node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n"})
	source := newSource(options{files: files{manifests: folder}}, a, newJournal(logr.Discard()))
	if err := once(t.Context(), source, &proxy.Runner{Source: tracker, Backend: failing{}}); err != nil {
		t.Errorf("once: %v", err)
	}
	if !hasOwner(a, "new") {
		t.Error("the new Service got no address, want one")
	}
}

// TestOnceReadsOnce checks that -once hands the files over once, and logs an error of them once.
func TestOnceReadsOnce(t *testing.T) {
	t.Parallel()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
	passes, lines := 0, 0
	source := &manifest.Source{
		Path: writeManifests(t, map[string]string{"bad.yaml": "apiVersion: v1\nkind: Service\n"}), Handler: tracker,
		Observe: func(manifest.Summary) { passes++ },
		Logger:  funcr.New(func(string, string) { lines++ }, funcr.Options{}),
	}
	if err := once(t.Context(), source, &proxy.Runner{Source: tracker, Backend: failing{}}); !errors.Is(err, errIncomplete) {
		t.Errorf("once: got error %v, want %v", err, errIncomplete)
	}
	if passes != 1 || lines != 1 {
		t.Errorf("got %d passes and %d lines, want one of each", passes, lines)
	}
}

// TestServiceBecomesHeadless checks that a Service that needs no address any more gives its own back.
func TestServiceBecomesHeadless(t *testing.T) {
	t.Parallel()
	a := newClusterIPs(t, filepath.Join(t.TempDir(), "allocations"), "10.96.0.0/30")
	s := plainService("web", nil)
	mustAssign(t, a, s)
	a.UpdateService(s)
	a.observed(manifest.Summary{Services: 1})
	if !hasOwner(a, "web") {
		t.Fatal("web lost its address")
	}
	a.UpdateService(plainService("web", func(s *v1.ServiceSpec) { s.ClusterIP = v1.ClusterIPNone }))
	a.observed(manifest.Summary{Services: 1})
	if hasOwner(a, "web") {
		t.Error("a headless Service: got its address held, want it free")
	}
}

// TestReleaseIsTriedAgain checks that an address whose release failed is freed by a later pass.
func TestReleaseIsTriedAgain(t *testing.T) {
	t.Parallel()
	a := newClusterIPs(t, filepath.Join(t.TempDir(), "allocations"), "10.96.0.0/30")
	mustAssign(t, a, plainService("web", nil))
	name := types.NamespacedName{Namespace: "default", Name: "web"}
	good := a.pool
	broken, err := allocator.NewPool(refusing{a.store}, allocator.PoolOptions{})
	if err == nil {
		err = broken.Sync(t.Context())
	}
	testenv.NoError(t, err)
	a.pool = broken
	a.DeleteService(name)
	a.pool = good
	if !hasOwner(a, "web") {
		t.Fatal("the address is free after a release that failed")
	}
	a.observed(manifest.Summary{Services: 1})
	if hasOwner(a, "web") {
		t.Error("after the next pass: got the address held, want it free")
	}
}

// refusing is a store that cannot be written.
type refusing struct{ allocator.Store }

func (refusing) Commit(context.Context, []allocator.Op) ([]allocator.Version, error) {
	return nil, errors.New("no space left on device")
}
