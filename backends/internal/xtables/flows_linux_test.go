package xtables

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestFindFrontends(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		`-d 10.96.0.1/32 -p udp -m comment --comment "kube-system/dns:dns cluster IP" -m udp --dport 53 -j X`: "UDP 10.96.0.1:53",
		`-d fd00::1/128 -p sctp -m comment --comment "a/b:p --dport 9 -d 1.2.3.4/32" -m sctp --dport 7 -j X`:  "SCTP [fd00::1]:7",
		`-p udp -m comment --comment "a/b:p" -m udp --dport 30053 -j X`:                                       "UDP 0.0.0.0:30053",
		`-d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j X`:                                                       "",
		`-d 10.96.0.0/16 -p udp -m udp --dport 53 -j X`:                                                       "",
		`-d 10.96.0.1/32 -p udp -m udp --dport 70000 -j X`:                                                    "",
		`-d 10.96.0.1/32 -p udp -m udp --dport 53:54 -j X`:                                                    "",
		`-d 10.96.0.1/32 -p icmp -m udp --dport 53 -j X`:                                                      "",
		`-s 10.0.0.1/32 -d 10.96.0.1/32 -p udp -m udp --dport 53 -j X`:                                        "",
		`-m addrtype --dst-type LOCAL -j NODEPORTS`:                                                           "", `-d 10.96.0.1/32`: "", ``: "",
	} {
		k := &kernel{Family: Family{Family: v1.IPv4Protocol}, names: newNames("vipkit")}
		k.findFrontends(saved{{NAT, "VIPKIT-SERVICES"}: {rule}, {Filter, "VIPKIT-SERVICES"}: {rule}, {NAT, "VIPKIT-FORWARD"}: {rule}})
		got := ""
		for _, p := range k.finds.Take() {
			got = fmt.Sprint(p.Name.Protocol, " ", p.Frontends[0].Addr)
		}
		testenv.Same(t, want, got, "frontends of %s", rule)
	}
}
