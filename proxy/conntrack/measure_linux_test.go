//go:build measure

package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
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
