package backendtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Sizes of what is sent to an endpoint and comes back. Of the datagrams one is about as
// large as a packet may be on a link of the testbed, and one goes in fragments.
const transferBytes, largeDatagram, fragmentedDatagram = 256 << 10, 1440, 8000

// testTransfers sends much to endpoints, and gets it back: whatever is on the way, no
// packet is too large for it without the sender being told.
func (c *Config) testTransfers(t *testing.T) {
	s := c.setUp(t)
	var all []objects
	var flights []flight
	for number, at := range []place{atLocal, atRemote} {
		x := &sample{
			number: number + 1, serviceType: v1.ServiceTypeNodePort, externalIP: true,
			external: v1.ServiceExternalTrafficPolicyCluster, endpoints: []sampleEndpoint{{at: at}},
		}
		all = append(all, x.objects())
		for _, from := range []place{atClient, atLocal, atNode, atOutside} {
			for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
				for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
					to := client{from, protocol, family}.flightsTo(x)
					flights = append(flights, to[0], to[1], to[3]) // ClusterIP, external IP, node port
				}
			}
		}
	}
	s.apply(t, resolve(t, s.tracker(nodeOptions()), all...))
	s.transferAll(t, s.reachable(flights))
}

// reachable gives the flights that are forwarded, and never lost in this world.
func (s *stage) reachable(flights []flight) []flight {
	return slices.DeleteFunc(s.flying(flights), func(f flight) bool {
		v := proxy.Route(s.applied, s.packet(f))
		return v.Action != proxy.Forward || slices.Contains(s.allowed(f, v), reply{outcome: silence}.String())
	})
}

// transferAll makes the transfers, some at a time.
func (s *stage) transferAll(t *testing.T, flights []flight) {
	t.Helper()
	errs, slots := make([]error, len(flights)), make(chan struct{}, probesAtOnce/4)
	var wg sync.WaitGroup
	for i, f := range flights {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = s.transfer(t.Context(), f)
			<-slots
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("%s: %v", flights[i], err)
		}
	}
}

func (s *stage) transfer(ctx context.Context, f flight) (err error) {
	conn, err := s.host(f.from).ns.Dial(ctx, strings.ToLower(string(f.protocol)), f.to.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if f.protocol == v1.ProtocolUDP {
		return errors.Join(exchangeDatagrams(conn, largeDatagram), exchangeDatagrams(conn, fragmentedDatagram))
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
		return fmt.Errorf("after %d of %d bytes that were to come back: %w", len(line), transferBytes, err)
	}
	return isAnswerTo(question, line)
}

// exchangeDatagrams sends a datagram of some size, and again while nothing comes back:
// the first ones may be lost until the sender knows how large packets may be.
func exchangeDatagrams(conn net.Conn, size int) error {
	question := strings.Repeat("x", size)
	buf := make([]byte, maxDatagram)
	var last error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err := conn.SetDeadline(time.Now().Add(impatience)); err != nil {
			return err
		}
		if _, last = conn.Write([]byte(question)); last != nil {
			continue
		}
		var n int
		if n, last = conn.Read(buf); last == nil {
			return isAnswerTo(question, string(buf[:n]))
		}
	}
	return fmt.Errorf("a datagram of %d bytes has no answer: %w", size, last)
}

func isAnswerTo(question, line string) error {
	a, err := parseAnswer(line)
	if err == nil && a.question != question {
		err = fmt.Errorf("%d bytes came back of %d, or others", len(a.question), len(question))
	}
	return err
}
