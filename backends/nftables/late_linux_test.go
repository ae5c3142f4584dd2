package nftables

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// followLate calls Follow once it is due, as a Runner does at a resync.
func (s *flowStage) followLate(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !s.Flows.RetryDue(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("untranslated flows were removed: got Due false for a minute, want true")
		}
	}
	testenv.NoError(t, s.Flows.RemoveStale(t.Context(), s.Applied, false))
}

// isLate reports whether servers are wrong only where a client has reached a gateway instead of an endpoint. On a
// busy machine, replies of the gateway may come later than the Cleaner waits for them: see [TestLateReply].
func isLate(got, want [3]string) bool {
	late := false
	for i := range got {
		isGateway := strings.Contains(got[i], "gateway") && (want[i] == "A" || want[i] == "B")
		if got[i] != want[i] && !isGateway {
			return false
		}
		late = late || isGateway
	}
	return late
}

// settled returns the servers of the clients; after a late reply, those after another Follow.
func (s *flowStage) settled(t *testing.T, servers func([3]string) [3]string, want [3]string) [3]string {
	t.Helper()
	got := servers(want)
	if !isLate(got, want) {
		return got
	}
	t.Logf("servers of the clients: got %q, since a gateway answered late", got)
	s.followLate(t)
	return servers(want)
}

// A gateway that had an address before a Service answers a request after the flow of the request was removed.
// To the kernel the client then belongs to the gateway, until a later Follow.
func TestLateReply(t *testing.T) {
	t.Parallel()
	s := &flowStage{plain: plainOf(v1.IPv6Protocol), fam: v1.IPv6Protocol, stage: newStage(t, Options{})}
	s.client = s.Lab.Add(lab.Host{Name: "clients", Uplink: "node", Addrs: s.plain.client, Gateway: s.clientSide})
	servers := s.Lab.Add(lab.Host{Name: "servers", Uplink: "node", Addrs: s.servers, Gateway: s.serverSide, Owned: s.vips, Serve: []uint16{5353}})
	gateway, err := servers.ListenUDP(t.Context(), 53)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = gateway.Close() })
	asked, released := make(chan struct{}, 1), make(chan struct{})
	go gateway.Serve(func(question []byte, _, _ netip.AddrPort) []byte {
		if string(question) == "early" {
			asked <- struct{}{}
			<-released
		}
		return []byte("gateway")
	})
	s.startAgent(t)
	s.Apply(t, s.with("", ""))

	conn, err := s.client.ListenPacket(t.Context(), "udp", ":4001")
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	testenv.NoError(t, conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
	send := func(question string) {
		_, err := conn.WriteTo([]byte(question), net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.vip, 53)))
		testenv.NoError(t, err)
	}
	receive := func() string {
		buf := make([]byte, 256)
		n, _, err := conn.ReadFrom(buf)
		testenv.NoError(t, err)
		if a, err := lab.ParseAnswer(string(buf[:n])); err == nil {
			return s.nameOf(a.Own)
		}
		return string(buf[:n])
	}
	send("early")
	<-asked
	s.Apply(t, s.with("vip", "A"))
	close(released)
	if got := receive(); got != "gateway" || s.removed != 1 {
		t.Fatalf("late reply: got it from %q after %d flows were removed, want gateway and one", got, s.removed)
	}
	send("after-it")
	if got := receive(); got != "gateway" {
		t.Fatalf("server after the late reply: got %q, want gateway, or the test shows nothing", got)
	}
	s.followLate(t)
	send("at-last")
	if got := receive(); got != "A" {
		t.Errorf("server after another Follow: got %q, want A", got)
	}
}
