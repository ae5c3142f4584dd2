package engine

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

var (
	alice = netip.MustParseAddr("10.0.0.1")
	bob   = netip.MustParseAddr("10.0.0.2")
	carol = netip.MustParseAddr("10.0.0.3")
)

func webAt() suspectKey { return suspectKey{addr: memoryEndpoint, protocol: v1.ProtocolTCP} }

// avoided is what each of three finds, without a try being granted.
func (s *suspects) avoided() (all [3]bool) {
	for i, from := range []netip.Addr{alice, bob, carol} {
		all[i] = s.is(webAt(), from)
	}
	return all
}

func TestSuspectsBySource(t *testing.T) {
	for name, c := range map[string]struct {
		story func(s *suspects)
		want  [3]bool // for alice, bob and carol
	}{
		"nobody has failed":         {func(*suspects) {}, [3]bool{}},
		"one has failed":            {func(s *suspects) { s.accuse(webAt(), alice) }, [3]bool{true, false, false}},
		"one has failed repeatedly": {func(s *suspects) { s.accuse(webAt(), alice); s.accuse(webAt(), alice) }, [3]bool{true, false, false}},
		"two have failed":           {func(s *suspects) { s.accuse(webAt(), alice); s.accuse(webAt(), bob) }, [3]bool{true, true, true}},
		"two have failed, another one succeeded in between": {
			func(s *suspects) { s.accuse(webAt(), alice); s.acquit(webAt(), carol); s.accuse(webAt(), bob) }, [3]bool{true, true, false},
		},
		"two have failed, then another one succeeded": {
			func(s *suspects) { s.accuse(webAt(), alice); s.accuse(webAt(), bob); s.acquit(webAt(), carol) }, [3]bool{true, true, false},
		},
		"one has failed again, and another one soon after that": {
			func(s *suspects) {
				s.accuse(webAt(), alice)
				time.Sleep(4 * time.Second)
				s.accuse(webAt(), alice)
				time.Sleep(3 * time.Second)
				s.accuse(webAt(), bob)
			}, [3]bool{true, true, true},
		},
		"two have failed, and one of them again long after": {
			func(s *suspects) {
				s.accuse(webAt(), alice)
				s.accuse(webAt(), bob)
				time.Sleep(6 * time.Second)
				s.accuse(webAt(), bob)
			}, [3]bool{true, true, true},
		},
		"two have failed, and another one long after": {
			func(s *suspects) {
				s.accuse(webAt(), alice)
				s.accuse(webAt(), bob)
				time.Sleep(6 * time.Second)
				s.accuse(webAt(), alice)
			}, [3]bool{true, true, true},
		},
		"one has failed, then succeeded": {func(s *suspects) { s.accuse(webAt(), alice); s.acquit(webAt(), alice) }, [3]bool{}},
		"two have failed with a long time in between": {
			func(s *suspects) { s.accuse(webAt(), alice); time.Sleep(time.Minute); s.accuse(webAt(), bob) }, [3]bool{true, true, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSuspects(5 * time.Second)
				c.story(s)
				if got := s.avoided(); got != c.want {
					t.Errorf("got %v, want %v", got, c.want)
				}
			})
		})
	}
}

// A suspect of all whom another one has tried in vain rests as long as before.
func TestVainTriesAreNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuspects(5 * time.Second)
		for range 3 {
			s.accuse(webAt(), alice)
			s.accuse(webAt(), bob)
			time.Sleep(4 * time.Second)
			if !s.avoid(webAt(), carol, false) {
				t.Error("after 4 s of 5 it is not avoided")
			}
			time.Sleep(2 * time.Second)
		}
	})
}

func TestOneClientTriesASuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuspects(5 * time.Second)
		s.accuse(webAt(), alice)
		s.accuse(webAt(), bob)
		time.Sleep(4 * time.Second)
		if !s.avoid(webAt(), carol, false) {
			t.Error("after 4 s of 5 it is not avoided")
		}
		time.Sleep(2 * time.Second)
		if s.avoid(webAt(), carol, false) {
			t.Error("after 6 s of 5 nobody may try")
		}
		if !s.avoid(webAt(), alice, false) {
			t.Error("after 6 s of 5 two may try")
		}
		s.acquit(webAt(), carol)
		if s.avoid(webAt(), bob, false) {
			t.Error("it was reached, and is avoided by those who have waited long enough")
		}
		s.accuse(webAt(), alice)
		s.forget(time.Now())
		if got := s.avoided(); !got[0] {
			t.Error("one has failed just now, and it is forgotten")
		}
		time.Sleep(time.Hour)
		s.forget(time.Now())
		if s.count.Load() != 0 {
			t.Error("nobody has failed for an hour, and it is not forgotten")
		}
	})
}

// Who fails again and again cannot keep an endpoint from others: as soon as he
// has failed once more, another one may try.
func TestOneClientDoesNotKeepASuspectFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSuspects(5 * time.Second)
		s.accuse(webAt(), bob)
		s.accuse(webAt(), alice)
		for range 10 {
			time.Sleep(6 * time.Second)
			if s.avoid(webAt(), alice, false) {
				t.Fatal("nobody else has asked, and it is not the one who has")
			}
			s.accuse(webAt(), alice)
			if s.avoid(webAt(), carol, false) {
				t.Fatal("the same one has failed again, and nobody else may try")
			}
		}
	})
}

// No more is remembered than there is room for, and one who fails everywhere does
// not make room forever.
func TestSuspectsAreBounded(t *testing.T) {
	s := newSuspects(time.Hour)
	for i := range 3 * maxSuspects {
		s.accuse(suspectKey{addr: netip.AddrPortFrom(memoryEndpoint.Addr(), uint16(i)), protocol: v1.ProtocolTCP}, netip.AddrFrom4([4]byte{1, 2, 3, byte(i)}))
	}
	if got := s.count.Load(); got != 2*maxSuspects {
		t.Errorf("got %d suspects of both kinds, want %d", got, 2*maxSuspects)
	}
}

// A client from whom endpoints are hidden changes nothing for another one: not
// which endpoints he reaches, nor at once, nor to which he sticks.
func TestOneClientDoesNotSteerOthers(t *testing.T) {
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
		w := newWorld(t, Config{Hooks: Hooks{Dial: dial, Pick: pickIfThere(one)}}, v1.ProtocolTCP).sticky(time.Hour)
		w.serveAt(memoryFrontend, one, two)
		reach := func(from netip.Addr) netip.AddrPort {
			d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: netip.AddrPortFrom(from, 1), Frontend: memoryFrontend})
			if d.action != proxy.Forward {
				t.Fatalf("%v: got %v, want %v", from, d.action, proxy.Forward)
			}
			start := time.Now()
			conn, to, err := w.connect(t.Context(), &d)
			if err != nil {
				t.Fatal(err)
			}
			shut(conn)
			if took := time.Since(start); from != alice && took != 0 {
				t.Errorf("%v waited for %v", from, took)
			}
			return to.Addr
		}
		if got := reach(bob); got != one {
			t.Fatalf("got %v, want %v", got, one)
		}
		for range 20 {
			if got := reach(alice); got != two {
				t.Errorf("alice: got %v, want the only one that she reaches, %v", got, two)
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

// Two clients who cannot reach an endpoint move nobody who sticks to it, and can.
func TestAffinityOutlivesTheSuspicionOfOthers(t *testing.T) {
	one, two := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	dial := func(context.Context, Dial) (net.Conn, error) {
		near, far := net.Pipe()
		shut(far)
		return near, nil
	}
	w := newWorld(t, Config{Hooks: Hooks{Dial: dial, Pick: pickIfThere(one)}}, v1.ProtocolTCP).sticky(time.Hour)
	w.serveAt(memoryFrontend, one, two)
	d := w.decide(Flow{Protocol: v1.ProtocolTCP, Client: memoryClient, Frontend: memoryFrontend})
	for range 2 {
		conn, to, err := w.connect(t.Context(), &d)
		if err != nil {
			t.Fatal(err)
		}
		shut(conn)
		if to.Addr != one {
			t.Fatalf("got %v, want %v", to.Addr, one)
		}
		w.suspects.accuse(suspectKey{addr: one, protocol: v1.ProtocolTCP}, alice)
		w.suspects.accuse(suspectKey{addr: one, protocol: v1.ProtocolTCP}, bob)
	}
}

// A failure of one source does not make others avoid an endpoint. With UDP a try has no
// result, so that no source waits for that of another.
func TestAvoidedEndpointsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
			s, k := newSuspects(5*time.Second), suspectKey{addr: memoryEndpoint, protocol: protocol}
			s.accuse(k, alice)
			if !s.avoid(k, alice, false) || !s.avoid(k, alice, true) || s.avoid(k, bob, false) {
				t.Errorf("%s: one has failed, and it is not she alone who avoids it", protocol)
			}
			s.accuse(k, bob)
			if !s.avoid(k, carol, false) || s.avoid(k, carol, true) {
				t.Errorf("%s: two have failed; the others should avoid it but for what they have seen", protocol)
			}
			time.Sleep(6 * time.Second)
			all := [2]bool{s.avoid(k, alice, false), s.avoid(k, carol, false)}
			if want := [2]bool{false, protocol == v1.ProtocolTCP}; all != want {
				t.Errorf("%s: after the time is up, two ask and avoid it: %v, want %v", protocol, all, want)
			}
		}
	})
}
