package nftables

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Other programs may commit to their own tables faster than many rules or a large set can be
// listed. The listing of a new process is complete all the same, so it writes nothing.
func TestAdoptionDuringForeignCommits(t *testing.T) {
	t.Parallel()
	t.Run("endpoints", func(t *testing.T) {
		t.Parallel()
		w := newWatched(t, listLimit)
		snapshot := proxy.NewSnapshot(stagetest.Node(), manyPorts(4000)...)
		w.Apply(t, snapshot)
		w.adoptsDuringCommits(t, snapshot)
	})
	t.Run("rules", func(t *testing.T) {
		t.Parallel()
		w := newWatched(t, listLimit)
		var ports []*proxy.ServicePort
		for i := range 1500 {
			ports = append(ports, stickyPort(v1.IPv4Protocol, i, 1))
		}
		snapshot := proxy.NewSnapshot(stagetest.Node(), ports...)
		w.Apply(t, snapshot)
		w.adoptsDuringCommits(t, snapshot)
	})
	t.Run("source ranges", func(t *testing.T) {
		t.Parallel()
		w := newWatched(t, listLimit)
		p := manyPorts(1)[0]
		f := &p.Frontends[0]
		f.Restricted = true
		for i := range 60_000 { // with gaps, so that each is a range of its own
			f.AllowedSources = append(f.AllowedSources, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
		}
		snapshot := proxy.NewSnapshot(stagetest.Node(), p)
		w.Apply(t, snapshot)
		w.adoptsDuringCommits(t, snapshot)
	})
	t.Run("clients", func(t *testing.T) {
		t.Parallel()
		w := newWatched(t, listLimit)
		p := stickyPort(v1.IPv4Protocol, 0, 2)
		snapshot := proxy.NewSnapshot(stagetest.Node(), p)
		w.Apply(t, snapshot)
		w.addClients(t, p, 60_000)
		w.adoptsDuringCommits(t, snapshot)
	})
}

// A process that ended during the replacement of the tables left a second table in each family.
// The next one finds the table that serves, although other programs commit faster than many
// chains can be listed.
func TestUnfinishedTablesDuringForeignCommits(t *testing.T) {
	t.Parallel()
	w := newWatched(t, listLimit)
	var ports []*proxy.ServicePort
	for i := range 1500 {
		ports = append(ports, stickyPort(v1.IPv4Protocol, i, 1))
	}
	snapshot := proxy.NewSnapshot(stagetest.Node(), ports...)
	w.Apply(t, snapshot)
	commits, _ := w.disturb(t)
	for range 8 {
		w.nft(t, "add table ip vipkit_2; add chain ip vipkit_2 services")
		w.Restart(t)
		w.Apply(t, snapshot)
		if got := w.Operations(t); got != 1 {
			t.Errorf("operations of the adoption: got %d, want 1, the removal of the unfinished table", got)
		}
	}
	if commits.Load() < 8 {
		t.Errorf("foreign commits in the meantime: got %d, want at least 8", commits.Load())
	}
}

// disturb commits as another program, some hundred times a second, until end is called or the test ends.
func (w *watched) disturb(t *testing.T) (commits *atomic.Int64, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, other := w.conn(t), nfnetlink.Table{Family: nfnetlink.IPv4, Name: "other"}
	commits = new(atomic.Int64)
	var committing sync.WaitGroup
	committing.Go(func() {
		for ctx.Err() == nil {
			var b nfnetlink.Batch
			b.DestroyTable(other)
			if c.Commit(ctx, &b) == nil {
				commits.Add(1)
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	end = func() {
		cancel()
		committing.Wait()
	}
	t.Cleanup(end)
	return commits, end
}

func (w *watched) adoptsDuringCommits(t *testing.T, snapshot proxy.Snapshot) {
	t.Helper()
	commits, _ := w.disturb(t)
	meanwhile := int64(0)
	for start := time.Now(); continues(start, 0, meanwhile >= 2); { // on a busy machine, foreign commits may be slow
		before := commits.Load()
		w.Restart(t)
		w.Apply(t, snapshot)
		meanwhile = commits.Load() - before
		if got := w.Operations(t); got != 0 {
			t.Fatalf("operations of the adoption during %d foreign commits: got %d, want 0", meanwhile, got)
		}
	}
	if meanwhile < 2 {
		t.Errorf("foreign commits in the meantime: got %d, want at least 2", meanwhile)
	}
}

// Other programs may commit faster than the clients of a service port can be listed. The
// clients of a removed endpoint lose their affinity all the same, and a new process keeps
// the other clients.
func TestClientsDuringForeignCommits(t *testing.T) {
	t.Parallel()
	const clients = 30_000
	for _, fam := range bothFamilies() {
		t.Run(string(fam), func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, listLimit)
			p := stickyPort(fam, 0, 3)
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
			w.addClients(t, p, clients)
			commits, end := w.disturb(t)
			two := *p
			two.Cluster = p.Cluster[:2]
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &two))
			w.Restart(t)
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &two))
			end()
			if got := w.clients(t, p); len(got) != 2 || got[p.Cluster[0].Addr.Addr().String()] != clients/3 {
				t.Errorf("clients by endpoint after %d foreign commits: got %v, want %d for each of the two remaining endpoints",
					commits.Load(), got, clients/3)
			}
		})
	}
}

// Another process may own a table of the backend's name (flag owner), so that the backend
// cannot change it. Apply then returns ErrUnavailable, and succeeds after that process has
// ended.
func TestTableOfAnotherOwner(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"vipkit", "vipkit_2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatched(t, listLimit)
			snapshot := proxy.NewSnapshot(stagetest.Node(), manyPorts(3)...)
			w.Apply(t, snapshot)
			w.nft(t, "flush ruleset")
			end := w.ownTable(t, name)
			defer end()
			err := w.Backend.Apply(t.Context(), proxy.Snapshot{}, snapshot)
			if !errors.Is(err, backends.ErrUnavailable) || errors.Is(err, proxy.ErrUnsupported) {
				t.Errorf("Apply: got error %v, want %v, and not %v", err, backends.ErrUnavailable, proxy.ErrUnsupported)
			}
			end()
			w.Applied = proxy.Snapshot{}
			w.Apply(t, snapshot)
			if got := w.countElements(t, setServices); got != 3 {
				t.Errorf("frontends: got %d, want 3", got)
			}
		})
	}
}

// ownTable starts a process that makes and owns a table, until end is called.
func (w *watched) ownTable(t *testing.T, table string) (end func()) {
	t.Helper()
	cmd := exec.Command(netnstest.NFT(t), "-i")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = w.NS.Do(cmd.Start)
	}
	if err == nil {
		_, err = io.WriteString(in, "add table ip "+table+" { flags owner; }\n")
	}
	testenv.NoError(t, err)
	for start := time.Now(); !strings.Contains(w.nft(t, "list ruleset"), "owner"); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("table of the other process: got none after a minute, want one")
		}
	}
	return sync.OnceFunc(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}
