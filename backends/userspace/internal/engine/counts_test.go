package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Flows that reach no endpoint are counted by cause, in the same way for connections and
// sessions.
func TestLostFlowsAreCounted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want proxy.ConnectionCounts
	}{
		"no port":        {ErrNoPort, proxy.ConnectionCounts{Crowded: 1}},
		"no descriptor":  {os.NewSyscallError("socket", syscall.EMFILE), proxy.ConnectionCounts{Crowded: 1}},
		"anything else":  {errors.New("broken"), proxy.ConnectionCounts{Failed: 1}},
		"no such device": {syscall.ENODEV, proxy.ConnectionCounts{Failed: 1}},
	} {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			t.Run(name+"/"+string(protocol), func(t *testing.T) {
				w := newFixture(t, Config{Hooks: Hooks{
					Dial: func(context.Context, Dial) (net.Conn, error) { return nil, test.err },
				}}, protocol)
				w.serveAt(memoryFrontend, memoryEndpoint)
				f := Flow{Protocol: protocol, Client: memoryClient, Frontend: memoryFrontend}
				if protocol == v1.ProtocolUDP {
					w.Datagram(f, []byte("?"), nil)
				} else {
					client, _ := net.Pipe()
					w.serve(client, f)
				}
				if got := w.CountConnections(); got != test.want {
					t.Errorf("got %+v, want %+v", got, test.want)
				}
				if got := w.sessions.sockets.taken.Load(); got != 0 {
					t.Errorf("counted sockets: got %d, want none", got)
				}
			})
		}
	}
}

// Bytes are those of datagrams that were sent on: not those that are denied, or that nobody takes.
func TestBytesOfDatagramsAreCounted(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{}, v1.ProtocolUDP)
	at := w.packets(t)
	server := udpSocket(t)
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, forwarding("dns", at, addrOf(server.LocalAddr()))))
	client, err := net.Dial("udp4", at.String())
	testenv.NoError(t, err)
	defer shut(client)
	buf := make([]byte, 100)
	for range 3 {
		if _, err := client.Write([]byte("12345")); err != nil {
			t.Fatal(err)
		}
		n, from, err := server.ReadFromUDPAddrPort(buf)
		if err != nil || n != 5 {
			t.Fatalf("got %d bytes and error %v, want 5 bytes", n, err)
		}
		if _, err := server.WriteToUDPAddrPort([]byte("1234567890"), from); err != nil {
			t.Fatal(err)
		}
		if n, err := client.Read(buf); err != nil || n != 10 {
			t.Fatalf("got %d bytes and error %v, want 10 bytes", n, err)
		}
	}
	eventually(t, "15 bytes there and 30 back are counted", func() bool { got := w.CountConnections(); return got.BytesIn == 15 && got.BytesOut == 30 })
	w.Apply(proxy.NewSnapshot(&proxy.Node{}))
	if _, err := client.Write([]byte("denied")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datagram is denied", func() bool { return w.CountConnections().Denied == 1 })
	if got := w.CountConnections(); got.BytesIn != 15 || got.BytesOut != 30 {
		t.Errorf("after a denied datagram: got %+v, want no more bytes", got)
	}
}
