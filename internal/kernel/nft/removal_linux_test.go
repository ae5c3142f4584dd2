package nft_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// Tables lose their base chains, whatever these are called, before anything else, and packets are awaited
// in between. Tables that do not exist, and tables of other programs, do not matter.
func TestRemoveTables(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	if _, err := netnstest.Run(t, ns, `table ip one {
	map m { type ipv4_addr : verdict; elements = { 192.0.2.1 : drop }; }
	chain regular { ip daddr vmap @m; }
	chain any-name { type nat hook prerouting priority 0; jump regular; }
	chain another { type filter hook output priority 0; jump regular; }
}
table ip6 one { chain any-name { type nat hook prerouting priority 0; }; }
table ip two { chain any-name { type nat hook prerouting priority 0; }; }`, netnstest.NFT(t), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	c := netnstest.Open(t, ns, func() (*nft.Conn, error) { return nft.Open("one") })
	var steps []string
	transact := c.Transact
	c.Transact = func(ctx context.Context, b *nfnetlink.Batch) error {
		err := transact(ctx, b)
		steps = append(steps, "commit: "+objects(t, c))
		return err
	}
	c.Await = func() { steps = append(steps, "await") }
	tables := []nfnetlink.Table{{Family: nfnetlink.IPv4, Name: "one"}, {Family: nfnetlink.IPv6, Name: "one"}, {Family: nfnetlink.IPv4, Name: "missing"}}
	for range 2 {
		testenv.NoError(t, c.RemoveTables(t.Context(), tables...))
	}
	want := []string{
		"commit: ip one: [regular]; ip two: [any-name]; ip6 one: [];", "await",
		"commit: ip two: [any-name];",
		"commit: ip two: [any-name];", // nothing to await
	}
	testenv.Same(t, want, steps, "steps")
}

// Another program may remove the same tables, or a part of them, after they were listed.
func TestRemoveTablesBesideAnother(t *testing.T) {
	t.Parallel()
	for taken, fails := range map[int]bool{1: false, 2: false, 100: true} {
		ns := netnstest.NewNS(t)
		run := func(script string) {
			t.Helper()
			if out, err := netnstest.Run(t, ns, script, netnstest.NFT(t), "-f", "-"); err != nil {
				t.Fatalf("%s: %v: %s", script, err, out)
			}
		}
		const add = "add table ip one\nadd chain ip one base { type filter hook output priority 0; }\n"
		run(add + "add chain ip one other { type filter hook input priority 0; }")
		c := netnstest.Open(t, ns, func() (*nft.Conn, error) { return nft.Open("one") })
		commits, transact := 0, c.Transact
		c.Transact = func(ctx context.Context, b *nfnetlink.Batch) error {
			if commits++; commits > taken {
				return transact(ctx, b)
			}
			run("delete chain ip one base")
			err := transact(ctx, b)
			run(add)
			return err
		}
		err := c.RemoveTables(t.Context(), nfnetlink.Table{Family: nfnetlink.IPv4, Name: "one"})
		left := objects(t, c)
		if fails != (err != nil) || fails != (left != "") || commits > 5 {
			t.Errorf("taken %d times: got error %v after %d commits, and %q left, want a failure: %t", taken, err, commits, left, fails)
		}
	}
}

// objects returns all tables with their chains.
func objects(t *testing.T, c *nft.Conn) string {
	t.Helper()
	var all []string
	for _, fam := range nft.Families() {
		tables, err := c.Tables(t.Context(), fam, "one", "two", "missing")
		testenv.NoError(t, err)
		slices.SortFunc(tables, func(a, b nfnetlink.TableInfo) int { return strings.Compare(a.Name, b.Name) })
		for _, table := range tables {
			chains, err := c.Chains(t.Context(), nfnetlink.Table{Family: fam, Name: table.Name})
			testenv.NoError(t, err)
			names := []string{}
			for _, chain := range chains {
				names = append(names, chain.Name)
			}
			all = append(all, fmt.Sprintf("%v %s: %v;", fam, table.Name, names))
		}
	}
	return strings.Join(all, " ")
}
