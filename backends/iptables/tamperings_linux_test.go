package iptables

import (
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// foreignBodies are rules as others write them with iptables, in any chain.
const foreignBodies = `-j ACCEPT
-j RETURN
-j DROP
-j LOG
-m comment --comment alone
-m comment --comment "kubernetes service portals"
-s 192.0.2.0/24 -j RETURN
! -d 192.0.2.0/24 -p tcp -j ACCEPT
-p tcp -m multiport --dports 80,443 -j RETURN
-m limit --limit 5/sec -j RETURN
-m mark --mark 0x1/0xff -j RETURN
-j MARK --set-xmark 0x1/0xffffffff
-p tcp -j DNAT --to-destination 192.0.2.1:80
-p udp -j REDIRECT --to-ports 53
-m statistic --mode nth --every 2 --packet 0 -j RETURN
-i lo -j RETURN
-o eth+ -j RETURN
-m conntrack --ctstate NEW -m comment --comment "kubernetes forwarding rules" -j RETURN
-p tcp -m comment --comment "test/service-00000 cluster IP" -m tcp --dport 80 -j ACCEPT
-m recent --name other --set
-m addrtype --dst-type BROADCAST -j RETURN
-p icmp -m icmp --icmp-type 8 -j RETURN
-m hashlimit --hashlimit-upto 1/sec --hashlimit-name h -j RETURN
-m time --timestart 01:00 --timestop 02:00 -j RETURN
-m string --string "a \"b\" \\ c" --algo bm -j RETURN
-p tcp -m tcp --tcp-flags SYN,ACK SYN -j RETURN
-m comment --comment "it's \"quoted\" \\ -j VIPKIT-SERVICES" -j RETURN
-d 127.0.0.0/8 -j RETURN
-g VIPKIT-NODEPORTS
-j VIPKIT-NODEPORTS
-j VIPKIT-MARK-MASQ
-j TRACE
-j CONNMARK --save-mark
-j REJECT`

// nativeBodies are rules as others write them with nft.
const nativeBodies = `drop
counter drop
accept
counter
continue
return
ip daddr 192.0.2.1 counter drop
ip daddr vmap { 192.0.2.1 : drop }
ip saddr { 192.0.2.1, 192.0.2.4 } return
ip daddr 192.0.2.3-192.0.2.9 return
ip daddr > 192.0.2.3 return
ip daddr 10.0.0.0/8 ip daddr 10.1.0.0/16 return
ip saddr & 255.0.255.0 == 10.0.1.0 return
ip length 100 return
ip ttl 5 return
ip dscp 3 return
ip protocol icmp return
ip6 saddr { 2001:db8::1, 2001:db8::2 } return
ip6 daddr 2001:db8::1-2001:db8::9 return
ip6 hoplimit 5 return
tcp dport { 80, 90 } return
tcp dport 80-90 return
tcp sequence 5 return
udp length 5 return
tcp flags syn return
tcp dport 80 redirect to :81
th dport 53 return
icmp type echo-request return
@th,0,16 5 return
@nh,0,8 5 return
@ll,0,8 5 return
meta mark set numgen random mod 2
meta mark set 5 accept
meta mark 4
meta mark > 4 return
meta skuid 0 return
meta length 100 return
meta hour > 5 return
meta random < 5 return
meta priority 5 return
meta pkttype broadcast return
meta iifname { "eth0", "eth1" } return
meta l4proto { tcp, udp } return
meta protocol ip return
meta nftrace set 1
ct mark 1 drop
ct state new log prefix "x"
ct mark set 5
fib daddr type local return
rt nexthop 192.0.2.1 return
socket transparent 1 return
quota over 5 bytes drop
limit rate 5/second accept
limit rate over 5/second drop
jhash ip saddr mod 2 vmap { 0 : drop, 1 : accept }
masquerade
reject
log group 5
notrack
accept comment "hello"
counter jump VIPKIT-NODEPORTS
ip saddr { 192.0.2.1 } counter jump VIPKIT-MARK-MASQ`

// one gives one line of a list.
func (v *vandal) one(list string) string {
	all := strings.Split(list, "\n")
	return all[v.r.IntN(len(all))]
}

// edit replaces a word of a rule by another one.
func (v *vandal) edit(rule string) string {
	pairs := [][2]string{
		{"-j RETURN", "-j ACCEPT"}, {"-j DROP", "-j ACCEPT"}, {"--dport 80", "--dport 81"}, {"8080", "8081"}, {"10.0.", "10.1."}, {"10.128.", "10.129."},
		{"fd00:10::", "fd00:11::"}, {"0x4000", "0x8000"}, {"-p tcp -m tcp", "-p udp -m udp"}, {"LOCAL", "UNICAST"}, {"0.5", "0.7"}, {"--rsource", "--rdest"},
		{"-j VIPKIT-", "-g VIPKIT-"}, {"NEW", "ESTABLISHED"}, {" -m comment", " -m mark --mark 0x1 -m comment"}, {"10800", "5"},
	}
	v.r.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	for _, p := range pairs {
		if edited := strings.Replace(rule, p[0], p[1], 1); edited != rule {
			return edited
		}
	}
	return "-s 192.0.2.0/24 " + rule
}

type tampering = func(*testing.T, *vandal)

// onRule is tampering with one rule, by lines for iptables-restore.
func onRule(lines func(v *vandal, at standing) []string) tampering {
	return func(t *testing.T, v *vandal) {
		t.Helper()
		if at, ok := v.any(t); ok {
			v.restore(t, at.table, lines(v, at)...)
		}
	}
}

// tamperings are what can be done with iptables.
func tamperings() []tampering {
	number := func(s standing) string { return s.chain + " " + strconv.Itoa(s.n) }
	insert := onRule(func(v *vandal, s standing) []string { return []string{"-I " + number(s) + " " + v.one(foreignBodies)} })
	return []tampering{
		insert, insert, insert,
		onRule(func(v *vandal, s standing) []string { return []string{"-A " + s.chain + " " + v.one(foreignBodies)} }),
		onRule(func(v *vandal, s standing) []string { return []string{"-R " + number(s) + " " + v.one(foreignBodies)} }),
		onRule(func(v *vandal, s standing) []string { return []string{"-R " + number(s) + " " + v.edit(s.text)} }),
		onRule(func(_ *vandal, s standing) []string { return []string{"-D " + number(s)} }),
		onRule(func(_ *vandal, s standing) []string { return []string{"-A " + s.chain + " " + s.text} }),
		onRule(func(_ *vandal, s standing) []string { return []string{"-I " + s.chain + " " + s.text} }),
		onRule(func(_ *vandal, s standing) []string {
			return []string{"-D " + number(s), "-A " + s.chain + " " + s.text}
		}),
		onRule(func(_ *vandal, s standing) []string {
			return []string{"-D " + number(s), "-I " + s.chain + " " + s.text}
		}),
		onRule(func(_ *vandal, s standing) []string { return []string{"-F " + s.chain} }),
		onRule(func(_ *vandal, s standing) []string {
			return []string{"-D " + number(s), "-A " + s.chain + " -j ACCEPT", "-A " + s.chain + " " + s.text}
		}),
		onRule(func(_ *vandal, s standing) []string {
			return []string{"-F " + s.chain, "-I " + s.chain + " -m comment --comment all -j ACCEPT"}
		}),
		onRule(func(_ *vandal, s standing) []string {
			return []string{":FOREIGN - [0:0]", "-A FOREIGN -j " + target(s.text)}
		}),
		onRule(func(_ *vandal, s standing) []string {
			return []string{":FOREIGN - [0:0]", "-A FOREIGN -j " + target(s.text), "-R " + number(s) + " -j FOREIGN"}
		}),
		onRule(func(v *vandal, s standing) []string {
			return []string{":VIPKIT-SVC-AAAAAAAAAAAAAAAA - [0:0]", "-A VIPKIT-SVC-AAAAAAAAAAAAAAAA " + v.one(foreignBodies), "-I " + s.chain + " -j VIPKIT-SVC-AAAAAAAAAAAAAAAA"}
		}),
		onRule(func(v *vandal, s standing) []string {
			return []string{":VIPKIT-BY-HAND - [0:0]", "-A VIPKIT-BY-HAND " + v.one(foreignBodies), "-I " + number(s) + " -j VIPKIT-BY-HAND"}
		}),
		onRule(func(_ *vandal, _ standing) []string { return []string{"-F"} }),
		onRule(func(_ *vandal, _ standing) []string { return []string{"-F", "-X"} }),
		onRule(func(_ *vandal, s standing) []string { return []string{"-E " + s.chain + " RENAMED"} }),
		func(t *testing.T, v *vandal) { // without --noflush
			t.Helper()
			v.try(t, "*nat\n:VIPKIT-SERVICES - [0:0]\n-A PREROUTING -j ACCEPT\nCOMMIT\n", "iptables-restore", "-w", "5")
		},
	}
}

// onChain is tampering by nft, with the table, chain, and the handle of one rule there.
func onChain(format string, body func(v *vandal) string) tampering {
	return func(t *testing.T, v *vandal) {
		t.Helper()
		at, ok := v.any(t)
		if !ok {
			return
		}
		text := strings.NewReplacer("@CHAIN", at.chain, "@HANDLE", v.handle(t, at), "@TARGET", target(at.text), "@BODY", body(v)).Replace(format)
		v.native(t, at.table, "%s", text)
	}
}

// handle gives the handle of a rule.
func (v *vandal) handle(t *testing.T, at standing) string {
	t.Helper()
	n := 0
	for line := range strings.Lines(v.listChain(t, at)) {
		if text, handle, ok := strings.Cut(strings.TrimSpace(line), " # handle "); ok && !strings.HasPrefix(text, "chain ") {
			if n++; n == at.n {
				return handle
			}
		}
	}
	return "1"
}

// nativeTamperings are what can be done with nft.
func nativeTamperings() []tampering {
	foreign := func(v *vandal) string { return v.one(nativeBodies) }
	none := func(*vandal) string { return "" }
	insert := onChain("insert rule @TABLE @CHAIN @BODY", foreign)
	return []tampering{
		insert, insert, insert, insert, insert,
		onChain("add rule @TABLE @CHAIN @BODY", foreign),
		onChain("replace rule @TABLE @CHAIN handle @HANDLE @BODY", foreign),
		onChain("replace rule @TABLE @CHAIN handle @HANDLE @BODY", foreign),
		onChain("delete rule @TABLE @CHAIN handle @HANDLE", none),
		onChain("insert rule @TABLE PREROUTING ip daddr { 192.0.2.1 } counter jump @TARGET\n", none),
		onChain("insert rule @TABLE OUTPUT tcp sequence 5 counter jump @TARGET comment \"kubernetes x\"\n", none),
		onChain("replace rule @TABLE @CHAIN handle @HANDLE meta l4proto { tcp, udp } counter jump @TARGET comment \"kubernetes service portals\"", none),
		onChain("flush chain @TABLE @CHAIN", none),
		onChain("flush table @TABLE", none),
		onChain("delete table @TABLE", none),
		onChain("add table @TABLE { flags dormant; }", none),
		onChain("flush ruleset", none),
		onChain("rename chain @TABLE @CHAIN renamed", none),
		onChain("add chain @TABLE VIPKIT-SVC-AAAAAAAAAAAAAAAA { type filter hook output priority 5; }\nadd rule @TABLE VIPKIT-SVC-AAAAAAAAAAAAAAAA counter drop", none),
		onChain("flush chain @TABLE OUTPUT\ndelete chain @TABLE OUTPUT\nadd chain @TABLE OUTPUT", none),
		onChain("flush chain @TABLE OUTPUT\ndelete chain @TABLE OUTPUT\nadd chain @TABLE OUTPUT { type filter hook output priority 7; }", none),
		onChain("flush chain @TABLE OUTPUT\ndelete chain @TABLE OUTPUT", none),
		onChain("add map @TABLE foreign { type ipv4_addr : verdict; }\nadd element @TABLE foreign { 192.0.2.1 : jump @CHAIN }", none),
		onChain("add chain @TABLE foreign\nadd rule @TABLE foreign jump @CHAIN\nadd rule @TABLE foreign goto @TARGET", none),
	}
}

// listChain lists a chain with handles; nothing where there is none.
func (v *vandal) listChain(t *testing.T, at standing) string {
	t.Helper()
	out, err := netnstest.Run(t, v.NS, "", netnstest.NFT(t), "-a", "list", "chain", "ip"+v.family, at.table, at.chain)
	if err != nil {
		return ""
	}
	return out
}
