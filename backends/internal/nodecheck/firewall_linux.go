package nodecheck

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// firewallPatience limits how long the tables of other programs are read.
const firewallPatience = 5 * time.Second

// Firewalls returns a problem for each chain of nf_tables that drops by default what a dataplane
// accepts: in nf_tables the drop of one table is final, whatever another one accepts. Tables in
// which the dataplane has its own rules are left out. A chain with a rule that may accept the
// packets is no problem. The tables of other programs may have any content, so what cannot be
// read is not reported.
func Firewalls(s proxy.Snapshot, except ...nfnetlink.Table) []*proxy.Problem {
	return node{Snapshot: s}.firewalls(needs{forward: true, healthPorts: healthPorts(s)}, except)
}

// LegacyFirewalls returns a problem for each chain of iptables-legacy's table filter whose policy drops
// what a dataplane accepts. No rule of nf_tables helps there.
func LegacyFirewalls(s proxy.Snapshot) []*proxy.Problem {
	return node{Snapshot: s}.legacyFirewalls(needs{forward: true, healthPorts: healthPorts(s)})
}

// Rule is a rule that accepts packets, as nft and iptables have it.
type Rule struct{ NFT, IPTables string }

// Translated accepts connections whose destination was translated.
func Translated() Rule {
	return Rule{"ct status dnat accept", "-m conntrack --ctstate DNAT -j ACCEPT"}
}

// Delivery says which packets of Services a dataplane delivers to its own sockets on the node.
type Delivery struct {
	// Rule accepts the packets. Without a rule, only health check node ports are checked.
	Rule Rule
	// Port is the destination port that the packets have at the hook input, or 0 if they have the
	// ports of Services.
	Port uint16
}

// Deliveries returns the problems of [Firewalls] and [LegacyFirewalls] for a dataplane that forwards no
// packets: it needs packets to its own sockets and to health check node ports.
func Deliveries(s proxy.Snapshot, d Delivery) []*proxy.Problem {
	n, of := node{Snapshot: s}, needs{delivery: d, healthPorts: healthPorts(s)}
	return append(n.firewalls(of, nil), n.legacyFirewalls(of)...)
}

// needs are the packets that a dataplane needs firewalls to accept.
type needs struct {
	forward     bool
	delivery    Delivery
	healthPorts []uint16
}

func (n node) firewalls(of needs, except []nfnetlink.Table) (found []*proxy.Problem) {
	if n.Len() == 0 {
		return nil
	}
	conn, err := nfnetlink.Open()
	if err != nil {
		return nil
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	ctx, cancel := context.WithTimeout(context.Background(), firewallPatience)
	defer cancel()
	for _, family := range [...]nfnetlink.Family{nfnetlink.IPv4, nfnetlink.IPv6, unix.NFPROTO_INET} {
		var tables []nfnetlink.TableInfo
		if !n.isPassed(family) || conn.Tables(ctx, family, nfnetlink.Collect(&tables)) != nil {
			continue
		}
		for _, info := range tables {
			t := nfnetlink.Table{Family: family, Name: info.Name}
			if info.IsDormant() || slices.Contains(except, t) {
				continue
			}
			found = append(found, n.firewall(ctx, conn, t, of)...)
		}
	}
	return found
}

// isPassed reports whether packets of Services pass the tables of a family.
func (n node) isPassed(family nfnetlink.Family) bool {
	switch family {
	case nfnetlink.IPv4:
		return HasServices(n.Snapshot, v1.IPv4Protocol)
	case nfnetlink.IPv6:
		return HasServices(n.Snapshot, v1.IPv6Protocol)
	}
	return true
}

// healthPorts returns the ports at which load balancers ask for the health of Services.
func healthPorts(s proxy.Snapshot) (ports []uint16) {
	for p := range s.All() {
		if p.HealthCheckNodePort != 0 {
			ports = append(ports, p.HealthCheckNodePort)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// firewall checks one table.
func (n node) firewall(ctx context.Context, conn *nfnetlink.Conn, t nfnetlink.Table, of needs) (found []*proxy.Problem) {
	var chains []nfnetlink.Chain
	if conn.Chains(ctx, t, nfnetlink.Collect(&chains)) != nil {
		return nil
	}
	chains = slices.DeleteFunc(chains, func(c nfnetlink.Chain) bool {
		return !c.Base.Drop || c.Base.Type != "filter" || c.Base.Hook != nfnetlink.Input && c.Base.Hook != nfnetlink.Forward
	})
	if len(chains) == 0 {
		return nil
	}
	var a accepted
	visitor := nfnetlink.Visitor[nfnetlink.RuleInfo]{
		Begin: func() { a = accepted{} },
		Each:  func(r *nfnetlink.RuleInfo) error { a.add(r); return nil },
	}
	if conn.Rules(ctx, t, visitor) != nil {
		return nil
	}
	for _, c := range chains {
		for _, l := range a.lacks(c.Base.Hook, of) {
			found = append(found, n.problem(fmt.Sprintf("chain %s of table %v", c.Name, t), l.finding("add the rule: "+l.nft)))
		}
	}
	return found
}

// lack is what a chain that drops by default lacks: without the rule, there is a consequence. iptables
// may need several rules for it.
type lack struct {
	consequence, nft string
	iptables         []string
}

func (l lack) finding(remedy string) finding { return finding{"policy drop", l.consequence, remedy} }

// lacks returns what a chain at a hook lacks.
func (a *accepted) lacks(hook nfnetlink.Hook, of needs) (found []lack) {
	if hook == nfnetlink.Forward {
		if of.forward && !a.anything {
			found = append(found, Translated().lack("packets to endpoints on other nodes may be dropped, as no rule of the table accepts packets of Services"))
		}
		return found
	}
	if d := of.delivery; d.Rule != (Rule{}) && !a.anything && (d.Port == 0 || !a.takes(d.Port)) {
		found = append(found, d.Rule.lack("packets to Services may be dropped, as no rule of the table accepts those that the backend captures"))
	}
	if missing := slices.DeleteFunc(slices.Clone(of.healthPorts), a.takes); len(missing) > 0 {
		l := lack{
			consequence: "load balancers may not reach health check node ports, as no rule of the table accepts packets to them",
			nft:         "tcp dport { " + list(missing) + " } accept",
		}
		const most = 15 // ports of a match multiport
		for ports := range slices.Chunk(missing, most) {
			l.iptables = append(l.iptables, "-p tcp -m multiport --dports "+strings.ReplaceAll(list(ports), " ", "")+" -j ACCEPT")
		}
		found = append(found, l)
	}
	return found
}

func (r Rule) lack(consequence string) lack { return lack{consequence, r.NFT, []string{r.IPTables}} }

func list(ports []uint16) string {
	var texts []string
	for _, p := range ports {
		texts = append(texts, fmt.Sprint(p))
	}
	return strings.Join(texts, ", ")
}

// accepted is what the rules of a table may accept.
type accepted struct {
	// anything is true if a rule may accept new connections, whatever their port is.
	anything bool
	// ports are those to which a rule accepts packets; anyPort is true if a rule may accept
	// packets to any port of the node.
	ports   []portRange
	anyPort bool
}

type portRange struct{ first, last uint16 }

func anyPort() portRange { return portRange{last: math.MaxUint16} }

// takes reports whether a rule may accept packets to a port.
func (a *accepted) takes(port uint16) bool {
	return a.anyPort || slices.ContainsFunc(a.ports, func(r portRange) bool { return r.first <= port && port <= r.last })
}

// add adds a rule. A condition that is not understood may be true.
func (a *accepted) add(r *nfnetlink.RuleInfo) {
	c := conditions{ports: anyPort()}
	for s := range r.Steps() {
		c.add(&s)
	}
	a.addConditions(&c)
}

func (a *accepted) addConditions(c *conditions) {
	switch {
	case !c.accepts || c.isOther:
	case c.isBounded:
		a.ports = append(a.ports, c.ports)
	default:
		a.anything, a.anyPort = a.anything || !c.hasPort, true
	}
}

// conditions are what a rule requires of packets, as far as it matters.
type conditions struct {
	// accepts is true if the verdict is accept, and isOther if no packet that matters matches:
	// only those of known connections, of the loopback interface, of a bridge of a container
	// engine, or of a protocol such as ICMP.
	accepts, isOther bool
	// hasPort is true if the destination port matters; if isBounded is true, it must be among ports.
	hasPort, isBounded bool
	ports              portRange
	// loaded is what the last step has loaded.
	loaded loaded
}

// loaded is a field of a packet.
type loaded uint8

const (
	somethingElse loaded = iota
	connectionState
	interfaceName
	protocol
	destinationPort
)

func (c *conditions) add(s *nfnetlink.Step) {
	switch string(s.Name) {
	case "immediate":
		verdict, _, ok := s.Verdict()
		c.accepts = ok && verdict == accept
	case "ct", "meta", "payload":
		c.loaded = fieldOf(s)
		c.hasPort = c.hasPort || c.loaded == destinationPort
	case "bitwise":
		if mask := nested(s, unix.NFTA_BITWISE_MASK); c.loaded == connectionState && len(mask) == 4 {
			c.isOther = c.isOther || binary.NativeEndian.Uint32(mask)&stateNew == 0
		}
	case "cmp":
		c.compare(s)
	case "range":
		if s.Number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_EQ {
			c.bound(nested(s, unix.NFTA_RANGE_FROM_DATA), nested(s, unix.NFTA_RANGE_TO_DATA))
		}
	case "match":
		name, _, _ := bytes.Cut(s.Bytes(unix.NFTA_MATCH_NAME), []byte{0})
		c.match(string(name), s.Bytes(unix.NFTA_MATCH_INFO))
	}
}

// compare adds the condition of an expression cmp.
func (c *conditions) compare(s *nfnetlink.Step) {
	switch value := nested(s, unix.NFTA_CMP_DATA); s.Number(unix.NFTA_CMP_OP) {
	case unix.NFT_CMP_EQ:
		c.equal(value)
	case unix.NFT_CMP_GTE:
		c.bound(value, nil)
	case unix.NFT_CMP_LTE:
		c.bound(nil, value)
	}
}

// accept is the verdict.
const accept nfnetlink.Verdict = 1

// stateNew is the bit of new connections in the state of nf_tables and of the match conntrack.
const stateNew = 1 << 3

func fieldOf(s *nfnetlink.Step) loaded {
	switch string(s.Name) {
	case "ct":
		if s.Number(unix.NFTA_CT_KEY) == unix.NFT_CT_STATE {
			return connectionState
		}
	case "meta":
		switch s.Number(unix.NFTA_META_KEY) {
		case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME, unix.NFT_META_IIF, unix.NFT_META_OIF:
			return interfaceName
		case unix.NFT_META_L4PROTO:
			return protocol
		}
	case "payload":
		if s.Number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_TRANSPORT_HEADER && s.Number(unix.NFTA_PAYLOAD_OFFSET) == 2 {
			return destinationPort
		}
	}
	return somethingElse
}

// equal adds that the loaded field must have a value.
func (c *conditions) equal(value []byte) {
	switch {
	case c.loaded == destinationPort:
		c.bound(value, value)
	case c.loaded == protocol && len(value) == 1:
		c.isOther = c.isOther || value[0] != unix.IPPROTO_TCP && value[0] != unix.IPPROTO_UDP
	case c.loaded == interfaceName:
		name := string(bytes.TrimRight(value, "\x00"))
		isLoopback := name == "lo" || bytes.Equal(value, binary.NativeEndian.AppendUint32(nil, 1))
		c.isOther = c.isOther || isLoopback || strings.HasPrefix(name, "docker") || strings.HasPrefix(name, "br-")
	}
}

// bound adds that the destination port, if it is loaded, is from first to last. nil is no bound.
func (c *conditions) bound(first, last []byte) {
	if c.loaded != destinationPort {
		return
	}
	if len(first) == 2 {
		c.ports.first, c.isBounded = binary.BigEndian.Uint16(first), true
	}
	if len(last) == 2 {
		c.ports.last, c.isBounded = binary.BigEndian.Uint16(last), true
	}
}

// match reads a match of iptables. An inverted condition on ports may be true for any port.
func (c *conditions) match(name string, info []byte) {
	switch name {
	case "conntrack":
		c.matchConntrack(info)
	case "multiport":
		c.hasPort = true
	case "tcp", "udp":
		c.matchPorts(name, info)
	}
}

// matchConntrack reads the kernel's struct xt_conntrack_mtinfo3.
func (c *conditions) matchConntrack(info []byte) {
	const (
		matchFlags, invertFlags, stateMask = 146, 148, 150 // offsets
		hasState                           = 1             // XT_CONNTRACK_STATE
		translated                         = 0x80          // the state DNAT
	)
	if len(info) < stateMask+2 || binary.NativeEndian.Uint16(info[matchFlags:])&hasState == 0 {
		return
	}
	isInverted := binary.NativeEndian.Uint16(info[invertFlags:])&hasState != 0
	isNamed := binary.NativeEndian.Uint16(info[stateMask:])&(stateNew|translated) != 0
	c.isOther = c.isOther || isNamed == isInverted
}

// matchPorts reads the kernel's struct xt_tcp or xt_udp.
func (c *conditions) matchPorts(name string, info []byte) {
	const (
		destPorts       = 4 // the offset of the first and the last port
		portsAreInverse = 2 // XT_TCP_INV_DSTPT and XT_UDP_INV_DSTPT
	)
	inverse := map[string]int{"tcp": 11, "udp": 8}[name]
	if len(info) <= inverse {
		return
	}
	ports := portRange{binary.NativeEndian.Uint16(info[destPorts:]), binary.NativeEndian.Uint16(info[destPorts+2:])}
	switch {
	case info[inverse]&portsAreInverse != 0:
		c.hasPort = true
	case ports != anyPort():
		c.hasPort, c.isBounded, c.ports = true, true, ports
	}
}

// nested returns the value of an attribute with data.
func nested(s *nfnetlink.Step, attr uint16) []byte {
	return nfnetlink.DataValue(s.Bytes(attr))
}
