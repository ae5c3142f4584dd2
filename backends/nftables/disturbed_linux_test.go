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

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// flushing has somebody flush the ruleset before one of the commits.
type flushing struct {
	*kernel
	commits int
	flush   func()
}

func (f *flushing) Commit(ctx context.Context, ops []op) error {
	if f.commits++; f.commits == 3 {
		f.flush()
	}
	return f.kernel.Commit(ctx, ops)
}

// A flush of the ruleset in the middle of a first load is nobody's fault: it is
// noticed at once, no port is blamed, and the next Apply makes all good.
func TestFlushInFirstLoad(t *testing.T) {
	for _, limit := range []int{listLimit, 0} {
		w := newWatched(t, limit)
		world := proxy.NewSnapshot(stagetest.Node(), manyPorts(5000)...)
		if limit == 0 { // made anew beside what there is
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), manyPorts(5)...))
			w.kernel.looked = false
		}
		f := &flushing{kernel: w.kernel, flush: func() { w.nft(t, "flush ruleset") }}
		b := backends.New(w.kernel.book.render, f)
		err := b.Apply(t.Context(), proxy.Snapshot{}, world)
		if !errors.Is(err, proxy.ErrDataplaneLost) || f.commits > 4 {
			t.Errorf("limit %d: got error %.200v after %d commits, want %v at once", limit, err, f.commits, proxy.ErrDataplaneLost)
		}
		if err := b.Apply(t.Context(), proxy.Snapshot{}, world); err != nil {
			t.Errorf("limit %d: the next Apply: got error %v, want none", limit, err)
		}
		if got := w.countElements(t, setServices); got != 5000 {
			t.Errorf("limit %d: got %d frontends, want 5000", limit, got)
		}
	}
}

// Others may commit to tables of their own faster than many rules or a large set can be
// read, be it one of ours or one of clients: a takeover reads it all the same, and writes nothing.
func TestTakeoverAmongCommits(t *testing.T) {
	t.Run("ours", func(t *testing.T) {
		w := newWatched(t, listLimit)
		world := proxy.NewSnapshot(stagetest.Node(), manyPorts(4000)...)
		w.Apply(t, world)
		w.takesOverAmongCommits(t, world)
	})
	t.Run("rules", func(t *testing.T) {
		w := newWatched(t, listLimit)
		var ports []*proxy.ServicePort
		for i := range 1500 {
			ports = append(ports, stickyPort(v1.IPv4Protocol, i, 1))
		}
		world := proxy.NewSnapshot(stagetest.Node(), ports...)
		w.Apply(t, world)
		w.takesOverAmongCommits(t, world)
	})
	t.Run("source ranges", func(t *testing.T) {
		w := newWatched(t, listLimit)
		p := manyPorts(1)[0]
		f := &p.Frontends[0]
		f.Restricted = true
		for i := range 60_000 { // with gaps, so that each is one
			f.AllowedSources = append(f.AllowedSources, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32))
		}
		world := proxy.NewSnapshot(stagetest.Node(), p)
		w.Apply(t, world)
		w.takesOverAmongCommits(t, world)
	})
	t.Run("clients", func(t *testing.T) {
		w := newWatched(t, listLimit)
		p := stickyPort(v1.IPv4Protocol, 0, 2)
		world := proxy.NewSnapshot(stagetest.Node(), p)
		w.Apply(t, world)
		w.addClients(t, p, 60_000)
		w.takesOverAmongCommits(t, world)
	})
}

func (w *watched) takesOverAmongCommits(t *testing.T, world proxy.Snapshot) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	others := w.conn(t)
	var commits atomic.Int64
	var committing sync.WaitGroup
	defer func() {
		cancel()
		committing.Wait()
	}()
	committing.Go(func() { commitOnAndOn(ctx, others, &commits) })
	meanwhile := int64(0)
	for start := time.Now(); goesOn(start, 0, meanwhile >= 2); { // on a busy machine, others may not have their turn
		before := commits.Load()
		w.Restart(t)
		w.Apply(t, world)
		meanwhile = commits.Load() - before
		if got := w.Operations(t); got != 0 {
			t.Fatalf("the takeover took %d operations among %d commits of others, want 0", got, meanwhile)
		}
	}
	if meanwhile < 2 {
		t.Errorf("others made %d commits meanwhile, which shows nothing", meanwhile)
	}
}

// Others may commit faster than the clients of a service port can be read: these
// forget an endpoint that goes all the same, and a takeover keeps the others.
func TestClientsAmongCommits(t *testing.T) {
	const clients = 30_000
	for _, fam := range bothFamilies() {
		t.Run(string(fam), func(t *testing.T) {
			w := newWatched(t, listLimit)
			p := stickyPort(fam, 0, 3)
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
			w.addClients(t, p, clients)
			ctx, cancel := context.WithCancel(t.Context())
			var commits atomic.Int64
			var committing sync.WaitGroup
			end := func() {
				cancel()
				committing.Wait()
			}
			defer end()
			others := w.conn(t)
			committing.Go(func() { commitOnAndOn(ctx, others, &commits) })
			two := *p
			two.Cluster = p.Cluster[:2]
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &two))
			w.Restart(t)
			w.Apply(t, proxy.NewSnapshot(stagetest.Node(), &two))
			end()
			if got := w.clients(t, p); len(got) != 2 || got[p.Cluster[0].Addr.Addr().String()] != clients/3 {
				t.Errorf("clients by endpoint after %d commits of others: got %v, want %d of each of the two that are left", commits.Load(), got, clients/3)
			}
		})
	}
}

// commitOnAndOn commits some hundred times a second.
func commitOnAndOn(ctx context.Context, c *nfnetlink.Conn, commits *atomic.Int64) {
	other := nfnetlink.Table{Family: nfnetlink.IPv4, Name: "other"}
	for ctx.Err() == nil {
		var b nfnetlink.Batch
		b.DestroyTable(other)
		if c.Commit(ctx, &b) == nil {
			commits.Add(1)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// A table of our names that belongs to another process, which nobody else may change, is
// no reason to give up: the error says so, and all is well once that process has gone.
func TestTableOfAnotherOwner(t *testing.T) {
	for _, name := range []string{"vipkit", "vipkit_2"} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t, listLimit)
			world := proxy.NewSnapshot(stagetest.Node(), manyPorts(3)...)
			w.Apply(t, world)
			w.nft(t, "flush ruleset")
			end := w.own(t, name)
			defer end()
			err := w.Backend.Apply(t.Context(), proxy.Snapshot{}, world)
			if !errors.Is(err, backends.ErrUnavailable) || errors.Is(err, proxy.ErrUnsupported) {
				t.Errorf("got error %v, want %v, and not %v", err, backends.ErrUnavailable, proxy.ErrUnsupported)
			}
			end()
			w.Applied = proxy.Snapshot{}
			w.Apply(t, world)
			if got := w.countElements(t, setServices); got != 3 {
				t.Errorf("got %d frontends, want 3", got)
			}
		})
	}
}

// own has another process make a table that belongs to it, until that ends.
func (w *watched) own(t *testing.T, table string) (end func()) {
	t.Helper()
	cmd := exec.Command(netnstest.NFT(t), "-i")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = w.NS.Do(cmd.Start)
	}
	if err == nil {
		_, err = io.WriteString(in, "add table ip "+table+" { flags owner; }\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); !strings.Contains(w.nft(t, "list ruleset"), "owner"); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("the other process has made no table")
		}
	}
	return sync.OnceFunc(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// However often somebody changes the timeout of an affinity, no more is kept of it
// than the last one.
func TestBookKeepsTheLastTimeout(t *testing.T) {
	w := newWatched(t, listLimit)
	sizes := map[int]bool{}
	for i := range 50 {
		p := stickyPort(v1.IPv4Protocol, 1, 2)
		p.Affinity = affinity.Config{Timeout: time.Duration(1+i) * time.Second}
		node := w.Applied.Node()
		if node == nil {
			node = stagetest.Node()
		}
		w.Apply(t, proxy.NewSnapshot(node, p))
		if i > 0 {
			sizes[len(w.kernel.book.page(node).chains)] = true
		}
	}
	if len(sizes) != 1 {
		t.Errorf("numbers of definitions while a timeout changes: got %v, want one", sizes)
	}
}
