package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// Flows that reach no endpoint are counted by cause, in the same way for connections and
// sessions.
func TestLostFlowsAreCounted(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		want Stats
	}{
		"no port":        {ErrNoPort, Stats{Crowded: 1}},
		"no descriptor":  {os.NewSyscallError("socket", syscall.EMFILE), Stats{Crowded: 1}},
		"anything else":  {errors.New("broken"), Stats{Failed: 1}},
		"no such device": {syscall.ENODEV, Stats{Failed: 1}},
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
				if got := w.Stats(); got != test.want {
					t.Errorf("got %+v, want %+v", got, test.want)
				}
				if got := w.sessions.sockets.taken.Load(); got != 0 {
					t.Errorf("counted sockets: got %d, want none", got)
				}
			})
		}
	}
}
