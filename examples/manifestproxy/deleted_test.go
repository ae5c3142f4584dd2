package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/manifest"
)

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
