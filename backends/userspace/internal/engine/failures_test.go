package engine

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

var (
	alice = netip.MustParseAddr("10.0.0.1")
	bob   = netip.MustParseAddr("10.0.0.2")
	carol = netip.MustParseAddr("10.0.0.3")
)

func webAt() failureKey { return failureKey{addr: memoryEndpoint, protocol: v1.ProtocolTCP} }

// avoided returns for each of three clients whether the endpoint has failed, without allowing
// an attempt.
func (f *failures) avoided() (all [3]bool) {
	for i, from := range []netip.Addr{alice, bob, carol} {
		all[i] = f.has(webAt(), from)
	}
	return all
}

func TestFailuresBySource(t *testing.T) {
	t.Parallel()
	names := map[string]netip.Addr{"alice": alice, "bob": bob, "carol": carol}
	for name, c := range map[string]struct {
		story string  // who fails, who succeeds (+), and how much time passes
		want  [3]bool // for alice, bob and carol
	}{
		"no source has failed":      {"", [3]bool{}},
		"one has failed":            {"alice", [3]bool{true, false, false}},
		"one has failed repeatedly": {"alice alice", [3]bool{true, false, false}},
		"two have failed":           {"alice bob", [3]bool{true, true, true}},
		"two have failed, another one succeeded in between":     {"alice +carol bob", [3]bool{true, true, false}},
		"two have failed, then another one succeeded":           {"alice bob +carol", [3]bool{true, true, false}},
		"one has failed again, and another one soon after that": {"alice 4s alice 3s bob", [3]bool{true, true, true}},
		"two have failed, and one of them again long after":     {"alice bob 6s bob", [3]bool{true, true, true}},
		"two have failed, and another one long after":           {"alice bob 6s alice", [3]bool{true, true, true}},
		"one has failed, then succeeded":                        {"alice +alice", [3]bool{}},
		"two have failed with a long time in between":           {"alice 1m bob", [3]bool{true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newFailures(5 * time.Second)
				for word := range strings.FieldsSeq(c.story) {
					if pause, err := time.ParseDuration(word); err == nil {
						time.Sleep(pause)
					} else if after, succeeds := strings.CutPrefix(word, "+"); succeeds {
						s.recordSuccess(webAt(), names[after])
					} else {
						s.recordFailure(webAt(), names[word])
					}
				}
				if got := s.avoided(); got != c.want {
					t.Errorf("got %v, want %v", got, c.want)
				}
			})
		})
	}
}

// If an attempt at an endpoint that all clients avoid fails, they avoid it for another period.
func TestFailedAttemptsAreNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFailures(5 * time.Second)
		for range 3 {
			s.recordFailure(webAt(), alice)
			s.recordFailure(webAt(), bob)
			time.Sleep(4 * time.Second)
			if !s.avoid(webAt(), carol, false) {
				t.Error("after 4 s of 5: got the endpoint allowed, want it avoided")
			}
			time.Sleep(2 * time.Second)
		}
	})
}

// A client that fails again and again cannot keep an endpoint from other clients: as soon as
// it has failed again, another one may try.
func TestOneClientDoesNotKeepAnEndpointFromOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFailures(5 * time.Second)
		s.recordFailure(webAt(), bob)
		s.recordFailure(webAt(), alice)
		for range 10 {
			time.Sleep(6 * time.Second)
			if s.avoid(webAt(), alice, false) {
				t.Fatal("without an attempt under way: got the endpoint avoided, want it allowed")
			}
			s.recordFailure(webAt(), alice)
			if s.avoid(webAt(), carol, false) {
				t.Fatal("after another failure of the same source: got the endpoint avoided for carol, want it allowed")
			}
		}
	})
}

// The number of recorded failures is bounded, and the last one is among them.
func TestFailuresAreBounded(t *testing.T) {
	t.Parallel()
	s := newFailures(time.Hour)
	for i := range 3 * maxFailures {
		s.recordFailure(failureKey{addr: netip.AddrPortFrom(memoryEndpoint.Addr(), uint16(i)), protocol: v1.ProtocolTCP}, netip.AddrFrom4([4]byte{1, 2, 3, byte(i)}))
	}
	if got := s.count.Load(); got != 2*maxFailures {
		t.Errorf("got %d failures in both maps, want %d", got, 2*maxFailures)
	}
	const last = 3*maxFailures - 1
	if !s.has(failureKey{addr: netip.AddrPortFrom(memoryEndpoint.Addr(), uint16(last%(1<<16))), protocol: v1.ProtocolTCP}, netip.AddrFrom4([4]byte{1, 2, 3, byte(last % 256)})) {
		t.Error("the last failure is not recorded")
	}
}

// A client that cannot reach an endpoint changes nothing for other clients: not which
// endpoints they reach, not how fast, not their affinity.
func TestOneClientDoesNotAffectOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
		dial := func(ctx context.Context, d Dial) (net.Conn, error) {
			if d.From == alice && d.To == one {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			near, far := net.Pipe()
			shut(far)
			return near, nil
		}
		w := newFixture(t, Config{Hooks: Hooks{Dial: dial, Pick: pickIfThere(one)}}, v1.ProtocolTCP).withAffinity(time.Hour)
		w.serveAt(memoryFrontend, one, two)
		reach := func(from netip.Addr) netip.AddrPort {
			d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(from, 1), Frontend: memoryFrontend})
			if d.route.Action != proxy.Forward {
				t.Fatalf("%v: got %v, want %v", from, d.route.Action, proxy.Forward)
			}
			start := time.Now()
			conn, to, err := w.connect(t.Context(), &d)
			testenv.NoError(t, err)
			shut(conn)
			if took := time.Since(start); from != alice && took != 0 {
				t.Errorf("%v: got a delay of %v, want none", from, took)
			}
			return to.Addr
		}
		if got := reach(bob); got != one {
			t.Fatalf("got %v, want %v", got, one)
		}
		for range 20 {
			if got := reach(alice); got != two {
				t.Errorf("alice: got %v, want the only endpoint that she can reach, %v", got, two)
			}
			for _, from := range []netip.Addr{bob, carol} {
				if got := reach(from); got != one {
					t.Errorf("%v: got %v, want %v", from, got, one)
				}
			}
			time.Sleep(3 * time.Second)
		}
	})
}

// A failure of one source does not make other sources avoid an endpoint. With UDP an attempt
// has no result, so that no source waits for that of another.
func TestAvoidedEndpointsAreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			s, k := newFailures(5*time.Second), failureKey{addr: memoryEndpoint, protocol: protocol}
			s.recordFailure(k, alice)
			if !s.avoid(k, alice, false) || !s.avoid(k, alice, true) || s.avoid(k, bob, false) {
				t.Errorf("%s: after a failure of alice: want alice alone to avoid the endpoint", protocol)
			}
			s.recordFailure(k, bob)
			if !s.avoid(k, carol, false) || s.avoid(k, carol, true) {
				t.Errorf("%s: after failures of two: want carol to avoid the endpoint, except with alone", protocol)
			}
			time.Sleep(6 * time.Second)
			all := [2]bool{s.avoid(k, alice, false), s.avoid(k, carol, false)}
			if want := [2]bool{false, protocol == v1.ProtocolTCP}; all != want {
				t.Errorf("%s: after the period: two sources avoid the endpoint: got %v, want %v", protocol, all, want)
			}
		}
	})
}
