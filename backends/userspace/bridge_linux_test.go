package userspace_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Connections of a bridged pod continue after their Service was removed, for the grace period,
// and when netfilter begins or ceases to see bridged packets.
func TestBridgedConnectionsContinue(t *testing.T) {
	t.Parallel()
	for _, netfilter := range []bool{false, true} {
		t.Run(fmt.Sprintf("netfilter=%v", netfilter), func(t *testing.T) {
			t.Parallel()
			n := newBridged(t, netfilter).from("other")
			b := n.start(t, userspace.Options{})
			s := bothProtocols()
			apply(t, b, s)
			var conns []*lab.Conn
			for _, to := range []string{one, service6} {
				_, c := n.wantAnswer(t, to)
				conns = append(conns, c)
			}
			wantContinue := func(when string) {
				t.Helper()
				for _, c := range conns {
					_, err := c.Ask(t.Context())
					if err == nil {
						err = checkRetransmits(c.Conn)
					}
					if err != nil {
						t.Errorf("%s: got error %v, want none", when, err)
					}
				}
			}
			testenv.NoError(t, b.Apply(t.Context(), s, services()))
			wantContinue("without the Service")
			for _, is := range []bool{true, false, true} {
				n.setNetfilter(t, is)
				wantContinue(fmt.Sprint("with netfilter ", is))
			}
		})
	}
}

// If the node has forgotten the flow of a bridged pod, an answer does not leave it with the address of the
// listener. The next datagram gets its answer.
func TestLateAnswersToBridgedPods(t *testing.T) {
	t.Parallel()
	for _, netfilter := range []bool{false, true} {
		for to, at := range map[string]string{one: podSocket, service6: "[fd00:2::10]:9000"} {
			t.Run(fmt.Sprintf("netfilter=%v/%s", netfilter, to), func(t *testing.T) {
				t.Parallel()
				testLateBridgedAnswers(t, newBridged(t, netfilter).from("other"), to, at)
			})
		}
	}
}

func testLateBridgedAnswers(t *testing.T, n network, to, at string) {
	t.Helper()
	server := n.listen(t, "pod", at)
	apply(t, n.start(t, userspace.Options{}), and(bothProtocols(), dns(to, at)))
	n.nft(t, `table inet watch {
		chain sent { type filter hook output priority -300; udp sport 16421 counter; }
		chain out { type filter hook postrouting priority 300
			ip saddr 0.0.0.0/8 counter drop
			ip6 saddr 100::/64 counter drop
		}
	}`)
	client := n.flow(t, to)
	send(t, client, "first")
	from := wantDatagram(t, server, "first")
	n.forget(t)
	answerTo(t, server, from, "late")
	eventually(t, "the late answer has been sent", func() bool {
		return strings.Contains(n.nft(t, "list table inet watch"), "udp sport 16421 counter packets 1 ")
	})
	send(t, client, "second")
	answerTo(t, server, wantDatagram(t, server, "second"), "in time")
	wantRead(t, client, "in time")
	if out := n.nft(t, "list table inet watch"); strings.Count(out, "counter packets 0 bytes 0 drop") != 2 {
		t.Errorf("answers have left with the addresses of listeners:\n%s", out)
	}
}

// A client's datagrams go to another endpoint after one has refused them by an ICMP error, whoever
// the client is and wherever the endpoint.
func TestRefusedDatagrams(t *testing.T) {
	t.Parallel()
	for name, refusing := range map[string][2]string{ // an unused port of the pod, or of the node
		"pod": {podAddr + ":9", "[fd00:2::10]:9"}, "node": {"10.244.2.1:9", "[fd00:2::1]:9"},
	} {
		forCaptures(t, func(t *testing.T, c userspace.Capture) {
			for _, netfilter := range []bool{false, true} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					n := newBridged(t, netfilter)
					apply(t, n.start(t, userspace.Options{Capture: c}), and(bothProtocols(),
						dns(one, refusing[0], podServer), dns(service6, refusing[1], podServer6)))
					for _, from := range []string{"client", "other", "node"} {
						for _, to := range []string{one, service6} {
							for range 4 { // Each of several sockets must get an answer soon.
								wantAnswerSoon(t, n.from(from).flow(t, to))
							}
						}
					}
				})
			}
		})
	}
}

// wantAnswerSoon asks several times. One question must be answered.
func wantAnswerSoon(t *testing.T, c net.Conn) {
	t.Helper()
	defer c.Close() //nolint:errcheck // it was used
	for range 20 {
		_, _ = c.Write([]byte("?"))
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := c.Read(make([]byte, 100)); err == nil {
			return
		}
	}
	t.Errorf("datagrams from %v to %v: got no answer, want one", c.LocalAddr(), c.RemoteAddr())
}
