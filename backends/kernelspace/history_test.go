package kernelspace_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// randomPort makes service port i, with some kinds of frontends and endpoints.
func randomPort(r *rand.Rand, i int) *proxy.ServicePort {
	var list []*endpoints.Endpoint
	for n := range 1 + r.IntN(4) {
		switch r.IntN(7) {
		case 0:
			list = append(list, said([]string{"node-2", ""}[r.IntN(2)], 1+r.IntN(9)))
		case 1, 2:
			list = append(list, local(1+r.IntN(9)))
		default:
			list = append(list, on(fmt.Sprintf("node-%d", 2+r.IntN(2)), remote(1+r.IntN(6))))
		}
		if n > 0 && r.IntN(8) == 0 {
			list[n] = at(9090, list[n])
		}
	}
	p := service(i, unique(list)...)
	if r.IntN(2) == 0 {
		p = with(p, frontend(proxy.NodePort, "0.0.0.0", uint16(30000+i)))
	}
	if r.IntN(3) == 0 {
		p = with(p, frontend(proxy.LoadBalancer, fmt.Sprintf("203.0.113.%d", i), 80))
	}
	if r.IntN(4) == 0 {
		p = sticky(p)
	}
	if r.IntN(6) == 0 {
		p = annotated(p, "winProxyOptimization", "DISABLED")
	}
	return p
}

// unique leaves out endpoints whose address is in a list already.
func unique(list []*endpoints.Endpoint) (out []*endpoints.Endpoint) {
	seen := map[string]bool{}
	for _, e := range list {
		if a := e.Addr.Addr().String(); !seen[a] {
			seen[a] = true
			out = append(out, e)
		}
	}
	return out
}

// randomFault has a tenth of the calls fail: before they take effect or after it; and modifications
// do nothing.
func randomFault(r *rand.Rand) func(hcntest.Call) hcntest.Fault {
	return func(c hcntest.Call) hcntest.Fault {
		switch {
		case r.IntN(10) > 0:
			return hcntest.Fault{}
		case c.Method == "ModifyLoadBalancer" && r.IntN(4) == 0:
			return hcntest.Fault{Ignored: true}
		case r.IntN(20) == 0:
			return hcntest.Fault{Err: &hcn.Error{Op: c.Method, Code: hcn.CodeManagerStopped}}
		}
		return hcntest.Fault{Err: errDenied, Done: r.IntN(3) == 0}
	}
}

// Whatever fails, and whenever a process starts again: an Apply without an error and without
// anything unfinished has done everything, errors name only ports, and in the end HNS has what an
// empty one would have.
func TestHistoriesConvergeUnderFaults(t *testing.T) {
	for what, begin := range map[string]func(*testing.T) *machine{
		"16.1":          func(t *testing.T) *machine { return newMachine(t, newest()) },
		"12.2":          func(t *testing.T) *machine { return newMachine(t, noModify()) },
		"9.5":           func(t *testing.T) *machine { return newMachine(t, server2019()) },
		"16.1, overlay": newOverlay,
		"9.5, overlay":  func(t *testing.T) *machine { return newOverlayOf(t, server2019()) },
	} {
		t.Run(what, func(t *testing.T) {
			r := testenv.Random(t)
			m := begin(t)
			ports := make([]*proxy.ServicePort, 12)
			failures, partial := 0, 0
			for step := range 300 {
				for range 1 + r.IntN(3) {
					i := r.IntN(len(ports))
					if ports[i] = nil; r.IntN(4) > 0 {
						ports[i] = randomPort(r, i+1)
					}
				}
				if r.IntN(40) == 0 {
					m.restart()
				}
				m.SetFault(randomFault(r))
				err := m.try(ports...)
				m.SetFault(nil)
				if err != nil {
					failures++
				}
				if _, some := errors.AsType[proxy.PortErrors](err); some && !errors.Is(err, proxy.ErrDataplaneLost) {
					partial++
				}
				if err == nil && m.settled() {
					m.wantAsFresh(step, ports)
				}
				if step%10 == 9 {
					m.converge(step, ports)
				}
				if t.Failed() {
					t.FailNow()
				}
			}
			t.Logf("%d Applies failed, %d of them for some ports", failures, partial)
			if partial < 20 {
				t.Errorf("got %d Applies that failed for some ports, want at least 20", partial)
			}
		})
	}
}

// finished reports whether nothing is left to do. That HNS does not modify is no work.
func (m *machine) finished() bool {
	return !slices.ContainsFunc(m.problems(), func(err error) bool { return !strings.Contains(err.Error(), "cannot be modified") })
}

// settled is finished, but for endpoints of which EndpointSlices name different nodes: histories are full of them.
func (m *machine) settled() bool {
	lines := strings.Split(fmt.Sprint(errors.Join(m.problems()...)), "\n")
	return m.finished() || !slices.ContainsFunc(lines, func(line string) bool {
		return !strings.Contains(line, "cannot be modified") && !strings.Contains(line, "made again after a pause")
	})
}

// converge applies without faults, as a Runner does: from the zero snapshot as long as
// something is unfinished.
func (m *machine) converge(step int, ports []*proxy.ServicePort) {
	m.t.Helper()
	for range 4 {
		err := m.try(ports...)
		if err == nil && m.settled() {
			m.wantAsFresh(step, ports)
			return
		}
		m.applied = proxy.Snapshot{}
	}
	m.t.Fatalf("step %d: four Applies without faults did not finish: %v", step, m.problems())
}

func (m *machine) problems() (all []error) {
	for _, p := range m.backend.Abilities().CheckNode(m.applied) {
		all = append(all, p.Err)
	}
	return all
}

// wantAsFresh compares HNS with one in which nothing happened before.
func (m *machine) wantAsFresh(step int, ports []*proxy.ServicePort) {
	m.t.Helper()
	begin := newMachine
	if m.options.HostMAC != "" {
		begin = newOverlayOf
	}
	fresh := begin(m.t, must(m.Version(m.t.Context())))
	fresh.apply(ports...)
	if diff := cmp.Diff(fresh.Dump(), m.Dump()); diff != "" {
		m.t.Errorf("step %d: HNS (-fresh +got):\n%s", step, diff)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
