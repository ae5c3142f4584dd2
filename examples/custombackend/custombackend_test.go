//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Config{
		New: func(t testing.TB) proxy.Backend { return backends.New(render, here(t)) },
		Faulty: func(t testing.TB, around func(func() error) error) proxy.Backend {
			return backends.New(render, faulty{here(t), around})
		},
		Dump:   dump,
		Lacks:  []backendtest.Capability{backendtest.Affinity, backendtest.Adoption, backendtest.Failover},
		Tables: true,
	})
}

// faulty is a kernel whose commits may fail.
type faulty struct {
	*kernel
	around func(func() error) error
}

func (f faulty) Commit(ctx context.Context, ops []backends.Op[key, string]) (out backends.Outcome) {
	err := f.around(func() error {
		out = f.kernel.Commit(ctx, ops)
		return out.Err()
	})
	if err == nil || out.Err() != nil {
		return out
	}
	return backends.PartialOutcome(0, len(ops), err) // nft carries out all ops or none
}

// here returns the kernel edge for the network namespace of the calling thread, whichever thread
// runs nft later.
func here(t testing.TB) *kernel {
	t.Helper()
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
	return newKernel("nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), ns.Fd()), "nft", "-f", "-")
}

// dump lists the tables, with chains in the order of their names: the kernel lists them in the
// order of their creation.
func dump(t testing.TB) string {
	t.Helper()
	var all []string
	for _, ip := range []string{"ip", "ip6"} {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "table", ip, "custom").CombinedOutput()
		switch {
		case err == nil:
			blocks := strings.Split(strings.TrimSuffix(string(out), "\n}\n"), "\n\n")
			slices.Sort(blocks)
			all = append(all, blocks...)
		case !strings.Contains(string(out), "No such file or directory"):
			t.Fatalf("nft: %v: %s", err, out)
		}
	}
	return strings.Join(all, "\n\n")
}
