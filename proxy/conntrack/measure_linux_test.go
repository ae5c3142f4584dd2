//go:build measure

package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// fill creates entries of untranslated flows: established connections for TCP.
func fill(t *testing.T, k *kernelTable, proto protocol, n int) {
	t.Helper()
	for i := range n {
		client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 16), byte(i >> 8)}), uint16(1024+i%50000))
		server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 443)
		r := k.request(nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, unix.AF_INET)
		r.AddData(tupleOf(nl.CTA_TUPLE_ORIG, proto, client, server))
		r.AddData(tupleOf(nl.CTA_TUPLE_REPLY, proto, server, client))
		r.AddData(nl.NewRtAttr(nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, 3600)))
		if proto == protoTCP {
			const established = 3
			info := nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO, nil)
			info.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_PROTOINFO_TCP, nil).AddRtAttr(nl.CTA_PROTOINFO_TCP_STATE, []byte{established})
			r.AddData(info)
		}
		if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
			t.Fatal(err)
		}
	}
}

func tupleOf(kind int, proto protocol, source, dest netip.AddrPort) *nl.RtAttr {
	t := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
	ip := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil)
	ip.AddRtAttr(nl.CTA_IP_V4_SRC, source.Addr().AsSlice())
	ip.AddRtAttr(nl.CTA_IP_V4_DST, dest.Addr().AsSlice())
	p := t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_PROTO, nil)
	p.AddRtAttr(nl.CTA_PROTO_NUM, []byte{byte(proto)})
	p.AddRtAttr(nl.CTA_PROTO_SRC_PORT, binary.BigEndian.AppendUint16(nil, source.Port()))
	p.AddRtAttr(nl.CTA_PROTO_DST_PORT, binary.BigEndian.AppendUint16(nil, dest.Port()))
	return t
}

func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}

// TestMeasureDumps measures dumps with the filters of the kernel.
func TestMeasureDumps(t *testing.T) {
	for _, size := range []struct{ tcp, udp int }{{0, 0}, {100_000, 0}, {100_000, 10_000}, {200_000, 10_000}} {
		_, c, k := newKernelTable(t)
		fill(t, k, protoTCP, size.tcp)
		fill(t, k, protoUDP, size.udp)
		for _, f := range []filter{
			{v1.IPv4Protocol, protoUDP}, {v1.IPv4Protocol, protoSCTP}, {v1.IPv4Protocol, protoTCP}, {v1.IPv6Protocol, protoUDP},
		} {
			var took []time.Duration
			returned := 0
			for range 7 {
				returned = 0
				start := time.Now()
				testenv.NoError(t, k.dump(f, func(flow) { returned++ }))
				took = append(took, time.Since(start))
			}
			t.Logf("%d entries of TCP, %d of UDP; %v: %d returned, median %v", size.tcp, size.udp, f, returned, median(took))
		}
		testenv.NoError(t, c.Close())
	}
}

// churn is a node in whose cluster Services come and go.
type churn struct {
	t     *testing.T
	c     *Cleaner
	ports map[string]*proxy.ServicePort
}

func (x *churn) follow(full bool) {
	x.t.Helper()
	n := node("192.0.2.0/24")
	var all []*proxy.ServicePort
	for _, p := range x.ports {
		all = append(all, p)
	}
	testenv.NoError(x.t, x.c.Follow(x.t.Context(), proxy.NewSnapshot(n, all...), full))
}

// run lets one Service come and go: it is created, gets endpoints one by one, each of which is
// replaced, and loses them one by one or all at once with the Service.
func (x *churn) run(i int, proto v1.Protocol, nodePort, emptied bool) {
	frontends := list(fmt.Sprintf("10.96.%d.%d:53", 1+i/250, i%250))
	if nodePort {
		frontends = append(frontends, fmt.Sprintf(":%d", 30000+i))
	}
	name := fmt.Sprint("s", i)
	set := func(servers ...string) {
		x.ports[name] = port(name, proto, frontends, servers)
		x.follow(false)
	}
	server := func(n int) string { return fmt.Sprintf("10.0.%d.%d:5353", i%250, n) }
	set()
	set(server(1))
	set(server(1), server(2))
	set(server(2), server(3))
	set(server(3), server(4))
	if emptied {
		set(server(4))
		set()
	}
	delete(x.ports, name)
	x.follow(false)
}

// TestMeasureChurn counts the dumps for Services that come and go as in Kubernetes' end-to-end
// tests: most are of TCP, some have node ports, half lose their endpoints first.
func TestMeasureChurn(t *testing.T) {
	_, c, k := newKernelTable(t)
	fill(t, k, protoTCP, 200_000)
	fill(t, k, protoUDP, 2_000)
	dumps, took := 0, time.Duration(0)
	c.options = Options{Foreign: isForeign, Observe: func(a Account) { dumps, took = dumps+a.Dumps, took+a.Duration }}
	x := &churn{t: t, c: c, ports: map[string]*proxy.ServicePort{"dns": port("dns", v1.ProtocolUDP, list(vip), list(a))}}
	x.follow(true)
	t.Logf("start: %d dumps, %v", dumps, took)
	dumps, took = 0, 0
	for i := range 60 {
		proto := v1.ProtocolTCP
		if i%3 == 0 {
			proto = v1.ProtocolUDP
		}
		x.run(i, proto, i%2 == 0, i%4 < 2)
	}
	t.Logf("60 Services, 20 of them of UDP: %d dumps, %v", dumps, took)
}
