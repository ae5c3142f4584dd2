package stagetest

// NFTRules are rules, one in each line, as other programs write them with nft.
const NFTRules = `drop
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
fib daddr oif 1 return
socket transparent 1 return
synproxy mss 1460 wscale 7
dup to 192.0.2.1
dup to 2001:db8::1
queue num 1
osf name "Linux" return
tcp option maxseg size set rt mtu
ipsec in reqid 1 return
ipsec out reqid 1 return
meta pkttype set host
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
