package e2e_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Chunks that begin an association of SCTP, and that acknowledge it.
const (
	sctpInit    = 1
	sctpInitAck = 2
)

// testSCTP begins associations with a Service, repeatedly from the same port, while its pod is
// replaced. The kernel need not support SCTP: the test itself makes the packets and replies.
func testSCTP(t *testing.T, c *cluster) {
	both := v1.IPFamilyPolicyRequireDualStack
	s, err := c.client.CoreV1().Services("default").Create(t.Context(), &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "sctp"},
		Spec: v1.ServiceSpec{
			IPFamilyPolicy: &both, Selector: map[string]string{"app": "sctp"},
			Ports: []v1.ServicePort{{Protocol: v1.ProtocolSCTP, Port: 80}},
		},
	}, metav1.CreateOptions{})
	testenv.NoError(t, err)
	var clients []*pod
	for _, n := range []*node{c.nodes[0], c.nodes[2]} {
		clients = append(clients, c.startPod("client", n))
	}
	var last *pod
	for tag := uint32(1); tag <= 2; tag++ {
		p := c.startPod("sctp", c.nodes[1])
		p.answerSCTP(t, tag)
		if last != nil {
			c.stopPod(last, 0)
		}
		last = p
		for _, client := range clients {
			for i, to := range clusterIPs(s) {
				from := netip.AddrPortFrom(client.addresses[i].Addr(), 20000)
				eventually(t, fmt.Sprintf("SCTP from %v to %v reaches %s", from, to, p.name), func() error {
					got, err := associate(t, client.ns, from, to)
					if err == nil && got != tag {
						err = fmt.Errorf("got a reply of pod %d", got)
					}
					return err
				})
			}
		}
	}
}

// tags are the two verification tags in a packet: the one that its receiver chose, and the one
// of its sender.
type tags struct{ receiver, sender uint32 }

// sctpPacket makes a packet with one chunk.
func sctpPacket(kind byte, from, to uint16, x tags) []byte {
	b := make([]byte, 32)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], x.receiver)
	b[12] = kind
	binary.BigEndian.PutUint16(b[14:], 20) // the length of the chunk
	binary.BigEndian.PutUint32(b[16:], x.sender)
	binary.BigEndian.PutUint32(b[20:], 1<<16) // room to receive
	binary.BigEndian.PutUint32(b[24:], 1<<16|1)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// listenSCTP returns a socket for all SCTP packets to an address.
func listenSCTP(t *testing.T, host *netns.NS, at netip.Addr) (net.PacketConn, error) {
	network := "ip4:132"
	if at.Is6() {
		network = "ip6:132"
	}
	return host.ListenPacket(t.Context(), network, at.String())
}

// answerSCTP acknowledges all associations, with a tag.
func (p *pod) answerSCTP(t *testing.T, tag uint32) {
	t.Helper()
	for _, a := range p.addresses {
		conn, err := listenSCTP(t, p.ns, a.Addr())
		testenv.NoError(t, err)
		var answering sync.WaitGroup
		answering.Go(func() {
			b := make([]byte, 256)
			for {
				n, from, err := conn.ReadFrom(b)
				if err != nil {
					return // The test ends.
				}
				if n < 32 || b[12] != sctpInit {
					continue
				}
				client, server := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
				answer := sctpPacket(sctpInitAck, server, client, tags{binary.BigEndian.Uint32(b[16:]), tag})
				_, _ = conn.WriteTo(answer, from) // The client repeats lost packets.
			}
		})
		t.Cleanup(func() {
			_ = conn.Close() // No goroutine uses it any more.
			answering.Wait()
		})
	}
}

// associate begins an association, and gives the tag of the pod that acknowledges it.
func associate(t *testing.T, host *netns.NS, from, to netip.AddrPort) (tag uint32, err error) {
	conn, err := listenSCTP(t, host, from.Addr())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // The reply was read.
	if err := conn.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		return 0, err
	}
	if _, err := conn.WriteTo(sctpPacket(sctpInit, from.Port(), to.Port(), tags{sender: 7}), &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
		return 0, err
	}
	b := make([]byte, 256)
	for {
		n, by, err := conn.ReadFrom(b)
		if err != nil {
			return 0, err
		}
		if n >= 32 && b[12] == sctpInitAck && by.String() == to.Addr().String() && binary.BigEndian.Uint16(b) == to.Port() {
			return binary.BigEndian.Uint32(b[16:]), nil
		}
	}
}
