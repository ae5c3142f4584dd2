package nftables

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// SCTP clients are served with session affinity. Few kernels have SCTP sockets, so the test
// writes and reads the packet itself.
func TestSCTPClientsHaveAffinity(t *testing.T) {
	t.Parallel()
	s := newTestbed(t, 3)
	p := stickyPort(v1.IPv4Protocol, 0, 0)
	p.Name.Protocol = v1.ProtocolSCTP
	p.Cluster = s.pool(0, 3)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), p))
	s.needSCTP(t)

	server, err := s.Server.ListenPacket(t.Context(), "ip4:132", "0.0.0.0")
	testenv.NoError(t, err)
	defer server.Close() //nolint:errcheck // it is used for reading only
	client, err := s.Client.Dial(t.Context(), "ip4:132", p.Frontends[0].Addr.Addr().String())
	testenv.NoError(t, err)
	defer client.Close() //nolint:errcheck // the packet was sent
	if _, err := client.Write(sctpInit(40_000, p.Frontends[0].Addr.Port())); err != nil {
		t.Fatal(err)
	}
	testenv.NoError(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
	got := make([]byte, 128)
	n, _, err := server.ReadFrom(got)
	if err != nil {
		t.Fatalf("waiting for the packet at the server: %v", err)
	}
	if port := binary.BigEndian.Uint16(got[2:n]); port != p.Cluster[0].Addr.Port() {
		t.Errorf("destination port of the packet: got %d, want %d", port, p.Cluster[0].Addr.Port())
	}
	total := 0
	for _, n := range s.clients(t, p) {
		total += n
	}
	if total != 1 {
		t.Errorf("clients with affinity: got %d, want 1", total)
	}
}

// needSCTP skips a test if the kernel does not track SCTP connections.
func (s *testbed) needSCTP(t *testing.T) {
	t.Helper()
	err := s.NS.Do(func() error {
		_, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed")
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		testenv.CannotRun(t, "the kernel does not track SCTP connections")
	}
	testenv.NoError(t, err)
}

// sctpInit composes the first packet of a connection.
func sctpInit(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, make([]byte, 8)...)     // no verification tag yet; the checksum
	b = append(b, 1, 0, 0, 20)            // INIT, no flags, length
	b = append(b, 0, 0, 0, 1, 0, 1, 0, 0) // tag, window
	b = append(b, 0, 1, 0, 1, 0, 0, 0, 1) // streams out and in, first number
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(b[8:], sum)
	return b
}
