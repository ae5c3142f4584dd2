package storm

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/internal/testenv"
)

// answer is the answer of a server: its own address and that of the client, as seen by the
// server.
type answer struct{ own, client netip.AddrPort }

func parseAnswer(text string) (a answer, err error) {
	var own, client string
	if _, err := fmt.Sscan(text, &own, &client); err != nil {
		return answer{}, fmt.Errorf("answer %q: %w", text, err)
	}
	var errOwn, errClient error
	a.own, errOwn = netip.ParseAddrPort(own)
	a.client, errClient = netip.ParseAddrPort(client)
	return a, errors.Join(errOwn, errClient)
}

func formatAnswer(own, client netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%v %v\n", unmapped(own), unmapped(client))
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// serve serves a TCP and UDP port at all addresses of a namespace, until the test ends.
func serve(t testing.TB, ns *netns.NS, port uint16) {
	t.Helper()
	listener, err := ns.Listen(t.Context(), "tcp", fmt.Sprintf("[::]:%d", port))
	testenv.NoError(t, err)
	packets, err := ns.ListenUDP(t.Context(), port)
	if err != nil {
		t.Fatal(errors.Join(err, listener.Close()))
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				served.Go(func() { sendAnswer(c) })
			}
		}
	})
	served.Go(func() {
		packets.Serve(func(_ []byte, client, own netip.AddrPort) []byte { return formatAnswer(own, client) })
	})
	t.Cleanup(func() {
		if err := errors.Join(listener.Close(), packets.Close()); err != nil {
			t.Error(err)
		}
		served.Wait()
	})
}

// sendAnswer sends the answer, and waits until the client closes the connection.
func sendAnswer(c net.Conn) {
	const patience = 2 * time.Second
	own, errOwn := netip.ParseAddrPort(c.LocalAddr().String())
	client, errClient := netip.ParseAddrPort(c.RemoteAddr().String())
	if errors.Join(errOwn, errClient, c.SetDeadline(time.Now().Add(patience))) == nil {
		if _, err := c.Write(formatAnswer(own, client)); err == nil {
			_, _ = c.Read(make([]byte, 1)) // It returns when the client closes.
		}
	}
	_ = c.Close() // The client reports an incomplete answer.
}
