package storm

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
)

// resetsTable remembers for some seconds who refused a connection: made has the resets that answer a
// SYN and that the node made, by its rules or because nothing listens, and passed those of servers
// behind the node. Elements begin with the client.
const resetsTable = `table inet storm-resets {
	set made4 { typeof ip daddr . tcp dport . ip saddr . tcp sport; flags dynamic,timeout; timeout 10s; size 65535; }
	set made6 { typeof ip6 daddr . tcp dport . ip6 saddr . tcp sport; flags dynamic,timeout; timeout 10s; size 65535; }
	set passed4 { typeof ip daddr . tcp dport . ip saddr . tcp sport; flags dynamic,timeout; timeout 10s; size 65535; }
	set passed6 { typeof ip6 daddr . tcp dport . ip6 saddr . tcp sport; flags dynamic,timeout; timeout 10s; size 65535; }
	chain made {
		type filter hook output priority 400; policy accept;
		tcp flags & (rst | ack) == rst | ack tcp sequence 0 update @made4 { ip daddr . tcp dport . ip saddr . tcp sport }
		tcp flags & (rst | ack) == rst | ack tcp sequence 0 update @made6 { ip6 daddr . tcp dport . ip6 saddr . tcp sport }
	}
	chain passed {
		tcp flags & (rst | ack) == rst | ack tcp sequence 0 update @passed4 { ip daddr . tcp dport . ip saddr . tcp sport }
		tcp flags & (rst | ack) == rst | ack tcp sequence 0 update @passed6 { ip6 daddr . tcp dport . ip6 saddr . tcp sport }
	}
	chain forward { type filter hook forward priority 400; policy accept; jump passed; }
	chain input { type filter hook input priority 400; policy accept; iifname != "lo" jump passed; }
}
`

// refusal says who refused a connection; empty if it was not refused by a reset.
func (s *storm) refusal(got *outcome) string {
	if got.Outcome != lab.Reset {
		return ""
	}
	family := "6"
	if got.source.Addr().Is4() {
		family = "4"
	}
	var found []string
	for _, set := range []string{"made", "passed"} {
		text, err := s.runOnNode("", "nft", "list", "set", "inet", "storm-resets", set+family)
		if err != nil {
			return fmt.Sprintf("; who refused it is not known: %v", err)
		}
		for element := range strings.SplitSeq(text, ",") {
			words := strings.Fields(strings.ReplaceAll(element, "elements = {", ""))
			if i := slices.Index(words, got.source.Addr().String()); i >= 0 && len(words) > i+6 && words[i+2] == fmt.Sprint(got.source.Port()) {
				found = append(found, fmt.Sprintf("%s a reset from %s port %s", map[string]string{"made": "the node made", "passed": "the node passed"}[set], words[i+4], words[i+6]))
			}
		}
	}
	if len(found) == 0 {
		return "; no reset of the last seconds refused it"
	}
	return "; " + strings.Join(found, ", ")
}

// A refused connection is reported with who refused it.
func TestRefusal(t *testing.T) {
	s := newStorm(t, readOptions(t, "nftables"))
	for _, c := range []struct {
		from     cluster.Name
		to, want string
	}{
		{cluster.Outside, "172.18.0.2:30999", "; the node made a reset from 172.18.0.2 port 30999"},
		{cluster.Client, "[fd00:18::2]:30999", "; the node made a reset from fd00:18::2 port 30999"},
		{cluster.Node, "172.18.0.2:30999", "; the node made a reset from 172.18.0.2 port 30999"},
		{cluster.Outside, "10.4.0.9:9999", "; the node passed a reset from 10.4.0.9 port 9999"},
		{cluster.Node, "[fd00:10:4::9]:9999", "; the node passed a reset from fd00:10:4::9 port 9999"},
		{cluster.Client, "10.4.0.9:8080", ""},
	} {
		f := flight{from: c.from, to: netip.MustParseAddrPort(c.to), protocol: v1.ProtocolTCP}
		got := s.traffic.try(t.Context(), f, s.options.patience())
		if text := s.refusal(&got); text != c.want {
			t.Errorf("%s: %v: got %q, want %q", f, &got, text, c.want)
		}
	}
}
