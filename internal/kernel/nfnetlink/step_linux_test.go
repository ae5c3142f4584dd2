package nfnetlink

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// steps returns the rules of a table as text, each with its chain, and their handles.
func steps(t *testing.T, c *Conn, table Table) (all []string, handles []uint64) {
	t.Helper()
	err := c.Rules(t.Context(), table, Visitor[RuleInfo]{Begin: func() { all, handles = nil, nil }, Each: func(r *RuleInfo) error {
		text := r.Chain
		for s := range r.Steps() {
			text += " " + string(s.Name)
			for _, attr := range []uint16{unix.NFTA_PAYLOAD_BASE, unix.NFTA_PAYLOAD_OFFSET, unix.NFTA_PAYLOAD_LEN} {
				if string(s.Name) == "payload" {
					text += fmt.Sprint(" ", s.Number(attr))
				}
			}
			if v, chain, ok := s.Verdict(); ok && string(s.Name) == "immediate" {
				text += fmt.Sprintf(" %d%s", v, chain)
			}
			if string(s.Name) == "cmp" {
				text += fmt.Sprintf(" %x", s.Bytes(unix.NFTA_CMP_DATA)[attrLen:])
			}
		}
		all, handles = append(all, text), append(handles, r.Handle)
		return nil
	}})
	testenv.NoError(t, err)
	return all, handles
}

func TestStepsOfRules(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	loadNft(t, `table ip t {
	chain a {
		ip daddr 192.0.2.1 counter drop
	}
	chain b {
		tcp dport 80
		counter jump a
		meta mark set 5
	}
}
`)
	table := Table{Family: IPv4, Name: "t"}
	all, handles := steps(t, c, table)
	want := []string{
		"a payload 1 16 4 cmp c0000201 counter immediate 0", "b meta cmp 06000000 payload 2 2 2 cmp 00500000",
		"b counter immediate -3a", "b immediate meta",
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Fatalf("steps of the rules (-want +got):\n%s", diff)
	}
	for s := range (&RuleInfo{steps: attrs{1, 2, 3}}).Steps() {
		t.Errorf("step of a malformed rule: got %q, want none", s.Name)
	}
	var b Batch
	b.DelRule(table, "b", handles[1])
	commit(t, c, &b)
	if all, _ = steps(t, c, table); !cmp.Equal([]string{want[0], want[2], want[3]}, all) {
		t.Errorf("rules after one was removed: got %q, want the others", all)
	}
	if err := c.Commit(t.Context(), &b); !errors.Is(err, unix.ENOENT) {
		t.Errorf("removing the rule again: got error %v, want %v", err, unix.ENOENT)
	}
}

func TestWakeTable(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	loadNft(t, "table ip t { flags dormant; }\n")
	var b Batch
	b.WakeTable(Table{Family: IPv4, Name: "t"})
	commit(t, c, &b)
	if text := nft(t, "list", "ruleset"); strings.Contains(text, "dormant") || !strings.Contains(text, "table ip t") {
		t.Errorf("table after WakeTable: got\n%s\nwant an active table", text)
	}
}
