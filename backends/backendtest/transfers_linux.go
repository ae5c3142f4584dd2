package backendtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Sizes of the data that is sent to an endpoint and returned. One datagram is about as
// large as the MTU of a link of the testbed, and one needs fragments.
const transferBytes, largeDatagram, fragmentedDatagram = 256 << 10, 1440, 8000

// testTransfers sends much data to endpoints, and gets it back: if a packet is too large for
// a link, the sender must get an ICMP error.
func (c *Config) testTransfers(t *testing.T) {
	s := c.setUp(t)
	var all []cluster.Objects
	var flights []flight
	for number, at := range []cluster.Name{cluster.Local, cluster.Remote} {
		x := exposed(number+1, at)
		all = append(all, x.Objects())
		for _, c := range clients(transports(), cluster.Client, cluster.Local, cluster.Node, cluster.Outside) {
			to := c.flightsTo(x)
			flights = append(flights, to[0], to[1], to[3]) // ClusterIP, external IP, node port
		}
	}
	s.apply(t, resolve(t, s.tracker(nodeOptions()), all...))
	s.transferAll(t, s.reachable(flights))
}

// reachable returns the flights that are forwarded and never lost in this world.
func (s *stage) reachable(flights []flight) []flight {
	return slices.DeleteFunc(s.inWorld(flights), func(f flight) bool {
		v := proxy.Route(s.applied, s.packet(f))
		return v.Action != proxy.Forward || slices.Contains(s.allowed(f, v), lab.Reply{Outcome: lab.Silence}.String())
	})
}

// transferAll makes the transfers, several at a time.
func (s *stage) transferAll(t *testing.T, flights []flight) {
	t.Helper()
	err := testenv.Each(len(flights), probesAtOnce/4, func(i int) error {
		if err := s.transfer(t.Context(), flights[i]); err != nil {
			return fmt.Errorf("%s: %w", flights[i], err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func (s *stage) transfer(ctx context.Context, f flight) (err error) {
	conn, err := s.host(f.from).ns.Dial(ctx, strings.ToLower(string(f.protocol)), f.to.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if f.protocol == v1.ProtocolUDP {
		return s.transferDatagrams(f, conn)
	}
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return err
	}
	answers := bufio.NewReader(conn)
	if _, err := answers.ReadString('\n'); err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	question := strings.Repeat("x", transferBytes)
	if _, err := conn.Write([]byte(question + "\n")); err != nil {
		return err
	}
	line, err := answers.ReadString('\n')
	if err != nil {
		return fmt.Errorf("after %d of %d returned bytes: %w", len(line), transferBytes, err)
	}
	return isAnswerTo(question, line)
}

// transferDatagrams sends datagrams that do not fit into the MTU of a tunnel, and of any link.
func (s *stage) transferDatagrams(f flight, conn net.Conn) error {
	mayBeLost := s.isLacking(Fragments) && (f.from == cluster.Node || s.world.bridge != nil && f.family() == v1.IPv6Protocol)
	if mayBeLost && s.world.tunnelMTU > 0 {
		return nil
	}
	if err := exchangeDatagrams(conn, largeDatagram); err != nil || mayBeLost {
		return err
	}
	return exchangeDatagrams(conn, fragmentedDatagram)
}

// exchangeDatagrams sends a datagram, repeatedly until it gets the answer: the first ones may
// be lost until the sender knows the path MTU.
func exchangeDatagrams(conn net.Conn, size int) error {
	question := strings.Repeat("x", size)
	buf := make([]byte, netns.MaxDatagram)
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err := conn.SetDeadline(time.Now().Add(shortPatience)); err != nil {
			return err
		}
		if _, last = conn.Write([]byte(question)); last != nil {
			continue
		}
		var n int
		if n, last = conn.Read(buf); last != nil {
			continue
		}
		// A late answer to an earlier datagram may arrive first.
		if last = isAnswerTo(question, string(buf[:n])); last == nil {
			return nil
		}
	}
	return fmt.Errorf("datagram of %d bytes: no answer: %w", size, last)
}

func isAnswerTo(question, line string) error {
	a, err := lab.ParseAnswer(line)
	if err == nil && a.Question != question {
		err = fmt.Errorf("got %d bytes back, want the %d that were sent", len(a.Question), len(question))
	}
	return err
}
