package iptables

import (
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// foreignBodies are rules as other programs write them with iptables, in any chain.
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

// one returns a random line of a list.
func (v *tamperer) one(list string) string {
	all := strings.Split(list, "\n")
	return all[v.r.IntN(len(all))]
}

// edit replaces a word of a rule by another one.
func (v *tamperer) edit(rule string) string {
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

// targetOf returns the chain to which a rule jumps.
func targetOf(rule string) (name string) {
	words := strings.Fields(rule)
	for i, flag := range words[:max(0, len(words)-1)] {
		if flag == "-j" || flag == "-g" {
			name = words[i+1]
		}
	}
	return name
}

type tampering = func(*testing.T, *tamperer)

// onRule returns a tampering with one rule, by lines for iptables-restore.
func onRule(lines func(v *tamperer, at ruleAt) []string) tampering {
	return func(t *testing.T, v *tamperer) {
		t.Helper()
		if at, ok := v.any(t); ok {
			v.restore(t, at.table, lines(v, at)...)
		}
	}
}

// tamperings returns all kinds of tampering with iptables.
func tamperings() []tampering {
	number := func(s ruleAt) string { return s.chain + " " + strconv.Itoa(s.n) }
	insert := onRule(func(v *tamperer, s ruleAt) []string { return []string{"-I " + number(s) + " " + v.one(foreignBodies)} })
	return []tampering{
		insert, insert, insert,
		onRule(func(v *tamperer, s ruleAt) []string { return []string{"-A " + s.chain + " " + v.one(foreignBodies)} }),
		onRule(func(v *tamperer, s ruleAt) []string { return []string{"-R " + number(s) + " " + v.one(foreignBodies)} }),
		onRule(func(v *tamperer, s ruleAt) []string { return []string{"-R " + number(s) + " " + v.edit(s.text)} }),
		onRule(func(_ *tamperer, s ruleAt) []string { return []string{"-D " + number(s)} }),
		onRule(func(_ *tamperer, s ruleAt) []string { return []string{"-A " + s.chain + " " + s.text} }),
		onRule(func(_ *tamperer, s ruleAt) []string { return []string{"-I " + s.chain + " " + s.text} }),
		onRule(func(_ *tamperer, s ruleAt) []string {
			return []string{"-D " + number(s), "-A " + s.chain + " " + s.text}
		}),
		onRule(func(_ *tamperer, s ruleAt) []string {
			return []string{"-D " + number(s), "-I " + s.chain + " " + s.text}
		}),
		onRule(func(_ *tamperer, s ruleAt) []string { return []string{"-F " + s.chain} }),
		onRule(func(_ *tamperer, s ruleAt) []string {
			return []string{"-D " + number(s), "-A " + s.chain + " -j ACCEPT", "-A " + s.chain + " " + s.text}
		}),
		onRule(func(_ *tamperer, s ruleAt) []string {
			return []string{"-F " + s.chain, "-I " + s.chain + " -m comment --comment all -j ACCEPT"}
		}),
		onRule(func(_ *tamperer, s ruleAt) []string {
			return []string{":FOREIGN - [0:0]", "-A FOREIGN -j " + targetOf(s.text)}
		}),
		onRule(func(_ *tamperer, s ruleAt) []string {
			return []string{":FOREIGN - [0:0]", "-A FOREIGN -j " + targetOf(s.text), "-R " + number(s) + " -j FOREIGN"}
		}),
		onRule(func(v *tamperer, s ruleAt) []string {
			return []string{":VIPKIT-SVC-AAAAAAAAAAAAAAAA - [0:0]", "-A VIPKIT-SVC-AAAAAAAAAAAAAAAA " + v.one(foreignBodies), "-I " + s.chain + " -j VIPKIT-SVC-AAAAAAAAAAAAAAAA"}
		}),
		onRule(func(v *tamperer, s ruleAt) []string {
			return []string{":VIPKIT-BY-HAND - [0:0]", "-A VIPKIT-BY-HAND " + v.one(foreignBodies), "-I " + number(s) + " -j VIPKIT-BY-HAND"}
		}),
		onRule(func(_ *tamperer, _ ruleAt) []string { return []string{"-F"} }),
		onRule(func(_ *tamperer, _ ruleAt) []string { return []string{"-F", "-X"} }),
		onRule(func(_ *tamperer, s ruleAt) []string { return []string{"-E " + s.chain + " RENAMED"} }),
		afterDetaching(hookMatches, func(t *testing.T, v *tamperer, at ruleAt, body string) {
			t.Helper()
			v.restore(t, at.table, "-I "+at.chain+" "+body)
		}),
		func(t *testing.T, v *tamperer) { // without --noflush
			t.Helper()
			v.try(t, "*nat\n:VIPKIT-SERVICES - [0:0]\n-A PREROUTING -j ACCEPT\nCOMMIT\n", "iptables-restore", "-w", "5")
		},
	}
}

// onChain returns a tampering with nft, for the table, chain and handle of one rule.
func onChain(format string, body func(v *tamperer) string) tampering {
	return func(t *testing.T, v *tamperer) {
		t.Helper()
		at, ok := v.any(t)
		if !ok {
			return
		}
		text := strings.NewReplacer("@CHAIN", at.chain, "@HANDLE", v.handle(t, at), "@TARGET", targetOf(at.text), "@BODY", body(v)).Replace(format)
		v.native(t, at.table, "%s", text)
	}
}

// handle returns the handle of a rule.
func (v *tamperer) handle(t *testing.T, at ruleAt) string {
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

// rulesOfNFT are rules, one in each line, as other programs write them with nft.
const rulesOfNFT = `drop
accept
return
ip daddr 192.0.2.1 counter drop
ip daddr vmap { 192.0.2.1 : drop }
ip daddr 192.0.2.3-192.0.2.9 return
ip daddr 10.0.0.0/8 ip daddr 10.1.0.0/16 return
ip saddr & 255.0.255.0 == 10.0.1.0 return
ip6 saddr { 2001:db8::1, 2001:db8::2 } return
ip6 daddr 2001:db8::1-2001:db8::9 return
tcp dport { 80, 90 } return
tcp sequence 5 return
tcp dport 80 redirect to :81
icmp type echo-request return
@ll,0,8 5 return
meta mark set numgen random mod 2
meta skuid 0 return
ct mark 1 drop
ct state new log prefix "x"
fib daddr type local return
fib daddr oif 1 return
socket transparent 1 return
dup to 192.0.2.1
queue num 1
osf name "Linux" return
tcp option maxseg size set rt mtu
quota over 5 bytes drop
limit rate 5/second accept
jhash ip saddr mod 2 vmap { 0 : drop, 1 : accept }
masquerade
reject
accept comment "hello"
counter jump VIPKIT-NODEPORTS
ip saddr { 192.0.2.1 } counter jump VIPKIT-MARK-MASQ`

// nativeTamperings returns all kinds of tampering with nft.
func nativeTamperings() []tampering {
	foreign := func(v *tamperer) string { return v.one(rulesOfNFT) }
	none := func(*tamperer) string { return "" }
	insert := onChain("insert rule @TABLE @CHAIN @BODY", foreign)
	return []tampering{
		insert, insert, insert, insert, insert,
		onChain("add rule @TABLE @CHAIN @BODY", foreign),
		onChain("delete rule @TABLE @CHAIN handle @HANDLE", none),
		onChain("insert rule @TABLE PREROUTING ip daddr { 192.0.2.1 } counter jump @TARGET\n", none),
		onChain("insert rule @TABLE OUTPUT tcp sequence 5 counter jump @TARGET comment \"kubernetes x\"\n", none),
		onChain("replace rule @TABLE @CHAIN handle @HANDLE meta l4proto { tcp, udp } counter jump @TARGET comment \"kubernetes service portals\"", none),
		onChain("flush chain @TABLE @CHAIN", none),
		onChain("add table @TABLE { flags dormant; }", none),
		onChain("flush table @TABLE", none),
		onChain("delete table @TABLE", none),
		onChain("flush ruleset", none),
		onChain("rename chain @TABLE @CHAIN renamed", none),
		onChain("flush chain @TABLE OUTPUT\ndelete chain @TABLE OUTPUT", none),
		onChain("add map @TABLE foreign { type ipv4_addr : verdict; }\nadd element @TABLE foreign { 192.0.2.1 : jump @CHAIN }", none),
		afterDetaching(hookBodies, func(t *testing.T, v *tamperer, at ruleAt, body string) {
			t.Helper()
			v.native(t, at.table, "insert rule @TABLE %s %s", at.chain, body)
		}),
		onChain("add chain @TABLE foreign\nadd rule @TABLE foreign jump @CHAIN\nadd rule @TABLE foreign goto @TARGET", none),
	}
}

// listChain lists a chain with handles; "" if it does not exist.
func (v *tamperer) listChain(t *testing.T, at ruleAt) string {
	t.Helper()
	out, err := netnstest.Run(t, v.NS, "", netnstest.NFT(t), "-a", "list", "chain", "ip"+v.family, at.table, at.chain)
	if err != nil {
		return ""
	}
	return out
}
