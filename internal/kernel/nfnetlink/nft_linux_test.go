package nfnetlink

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// sortElements makes listings comparable: the elements of a hash table have no order.
func sortElements(listing string) string {
	lines := strings.Split(listing, "\n")
	for i := 0; i < len(lines); i++ {
		if !strings.Contains(lines[i], "elements = {") {
			continue
		}
		end := i
		for !strings.HasSuffix(lines[end], "}") {
			end++
		}
		body := strings.Join(lines[i:end+1], " ")
		_, body, _ = strings.Cut(body, "{")
		elems := strings.Split(strings.TrimSuffix(body, "}"), ",")
		for j := range elems {
			elems[j] = strings.TrimSpace(elems[j])
		}
		slices.Sort(elems)
		lines = slices.Replace(lines, i, end+1, "elements: "+strings.Join(elems, ", "))
	}
	return strings.Join(lines, "\n")
}

// nft lists the objects in typeof notation and as JSON, and can load its listing again.
func TestNftListsAndLoadsAgain(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	for _, table := range testTables() {
		newBalancer(t, c, table)
	}
	var want strings.Builder
	for _, table := range testTables() {
		want.WriteString(balancerText(table))
	}
	listing := nft(t, "list", "ruleset")
	testenv.Same(t, sortElements(want.String()), sortElements(listing), "nft list ruleset")
	if out := nft(t, "-j", "list", "ruleset"); !strings.HasPrefix(out, `{"nftables":`) {
		t.Errorf("nft -j list ruleset printed %.100q, want JSON", out)
	}

	nft(t, "flush", "ruleset")
	loadNft(t, listing)
	if diff := cmp.Diff(sortElements(listing), sortElements(nft(t, "list", "ruleset"))); diff != "" {
		t.Errorf("the listing, loaded and listed again (-first +second):\n%s", diff)
	}
}

// A set that nft creates and one that this package creates are equal, including their user
// data.
func TestSetsAreThoseOfNft(t *testing.T) {
	t.Parallel()
	for _, table := range testTables() {
		t.Run(table.Family.String(), func(t *testing.T) {
			c := openInNamespace(t)
			loadNft(t, balancerText(table))
			byNft := listSets(t, c, table)

			var b Batch
			b.DestroyTable(table)
			addBalancer(&b, table)
			commit(t, c, &b)
			byUs := listSets(t, c, table)

			for _, want := range balancerSets() {
				spec := want.Spec(table.Family)
				if diff := cmp.Diff(spec, byUs[want.Name].SetSpec); diff != "" {
					t.Errorf("set %s: Spec and the kernel's list differ (-spec +kernel):\n%s", want.Name, diff)
				}
				if diff := cmp.Diff(byNft[want.Name].SetSpec, byUs[want.Name].SetSpec); diff != "" {
					t.Errorf("set %s (-nft +ours):\n%s", want.Name, diff)
				}
			}
		})
	}
}

// The timeout of a set is part of its spec, so a set with a timeout differs from all that
// AddSet makes.
func TestSetWithTimeout(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	loadNft(t, "table ip vip { set s { typeof ip saddr; timeout 1h; }; }\n")
	const hour = 60 * 60 * 1000
	spec := (&Set{Name: "s", Key: []Selector{SourceAddr}, Flags: SetTimeout}).Spec(IPv4)
	got := listSets(t, c, Table{Family: IPv4, Name: "vip"})["s"].SetSpec
	if spec.Timeout = hour; got != spec {
		t.Errorf("spec of a set with a timeout: got %+v, want %+v", got, spec)
	}
}

// listSets returns the named sets of a table.
func listSets(t testing.TB, c *Conn, table Table) map[string]SetInfo {
	t.Helper()
	var list []SetInfo
	if err := c.Sets(t.Context(), table, Collect(&list)); err != nil {
		t.Fatalf("Sets: %v", err)
	}
	sets := make(map[string]SetInfo)
	for _, s := range list {
		if s.Flags&unix.NFT_SET_ANONYMOUS == 0 {
			sets[s.Name] = s
		}
	}
	return sets
}

// Kernels before Linux 6.7 limit the filter of a socket to 20 KiB, and an administrator may
// set a lower limit: the filter still distinguishes names of any length, or passes the
// packet.
func TestMonitorWithShortFilter(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	other := open(t)
	for _, memory := range []int{128 << 10, 20 << 10, 1 << 10} {
		// Before Linux 6.8 a network namespace has no such file.
		if err := os.WriteFile("/proc/sys/net/core/optmem_max", fmt.Append(nil, memory), 0); err != nil {
			testenv.CannotRun(t, err.Error())
		}
		for _, length := range []int{1, 2, 3, 4, 5, 7, 8, 50, 63, 200, 253} {
			name := strings.Repeat("x", length)
			m, err := c.Monitor(name, name+"_2")
			if err != nil {
				t.Fatalf("optmem_max of %d bytes, names of %d bytes: %v", memory, length, err)
			}
			for _, touched := range []string{name, name + "_2", "x" + name, name[1:] + "y", name[1:] + "yx", "y"} {
				begin(t, m)
				b, clean := manyTables(0, touched)
				commit(t, other, b)
				commit(t, c, clean)
				own := touched == name || touched == name+"_2"
				if got := m.Noticed(); got != own && (own || memory > 1<<10 && length < 50) {
					t.Errorf("optmem_max of %d bytes, names of %d bytes, after a commit to %q: noticed: got %t, want %t",
						memory, length, touched, got, own)
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
