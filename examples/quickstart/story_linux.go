package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// story shows the steps; it has everything that they need.
type story struct {
	out io.Writer
	*manifest
	network *network
	proxy   *serviceProxy
	client  *http.Client
	last    string // the pod that the steps change
	steps   int
}

// patience is how long a step may take.
const patience = 30 * time.Second

// tell runs the steps until one of them fails.
func (s *story) tell(ctx context.Context) error {
	var names []string
	for _, p := range s.pods {
		names = append(names, p.name)
	}
	s.print("A small cluster, made of network namespaces:\n")
	s.say("client %s ─── %s node %s ─── [%s]", clientAddr, nodeForClient, nodeForPods, strings.Join(names, "] ["))
	for _, step := range []struct {
		title string
		run   func(context.Context) error
	}{
		{"A Service appears", s.appear},
		{"A client uses it", s.use},
		{"Whom do the pods see?", s.sources},
		{s.last + " is deleted", s.scaleDown},
		{s.last + " comes back", s.scaleUp},
		{s.last + " is about to terminate", s.terminate},
		{"A client sticks to its pod", s.stick},
		{"Why does a packet go where it goes?", s.why},
		{"A port that the Service does not have", s.wrongPort},
	} {
		if err := s.step(ctx, step.title, step.run); err != nil {
			return err
		}
	}
	return nil
}

// step runs one step.
func (s *story) step(ctx context.Context, title string, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.steps++
	s.print("\n%d. %s", s.steps, title)
	if err := run(ctx); err != nil {
		return fmt.Errorf("step %d: %w", s.steps, err)
	}
	return nil
}

// say prints a sentence of a step.
func (s *story) say(format string, args ...any) { s.print("   "+format, args...) }

func (s *story) print(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format+"\n", args...) // An error means that the reader has gone.
}

func (s *story) appear(ctx context.Context) error {
	s.proxy.UpdateService(&s.service)
	s.proxy.UpdateEndpointSlice(&s.slice)
	s.proxy.Synced() // All existing objects were passed on; from here on there are snapshots.
	s.say("The Service %q has the virtual IP %s. No machine has that address:", s.service.Name, s.vip.Addr())
	s.say("the node's nftables send connections to it on to the pods.")
	return s.awaitApplied(ctx)
}

func (s *story) use(ctx context.Context) error {
	s.say("It sends %d requests to %s. Each connection goes to a pod by chance.", s.requests(), s.vip)
	return s.spread(ctx, s.isPod)
}

func (s *story) sources(ctx context.Context) error {
	s.say("Replies must come back through the node, which has changed the destination. Where that is")
	s.say("not certain, it puts its own address in place of the caller's (masquerade).")
	first, fromPod := s.pods[0], newClient(s.network.pods[0], false)
	for _, call := range []struct {
		from   string
		client *http.Client
		to     string
		sees   string
		why    string
	}{
		{"the client", s.client, s.last, nodeForPods, "the node, for callers from outside"},
		{first.name, fromPod, s.last, first.addr.Addr().String(), "the caller itself"},
		{first.name, fromPod, first.name, nodeForPods, "the node, or the pod would talk to itself"},
	} {
		sees, err := askUntil(ctx, call.client, s.vip, call.to)
		if err != nil {
			return err
		}
		if sees != call.sees {
			return fmt.Errorf("%s calls, and %s sees %s, but must see %s", call.from, call.to, sees, call.sees)
		}
		s.say("  %-10s -> %-6s sees %-12s (%s)", call.from, call.to, sees, call.why)
	}
	return nil
}

func (s *story) scaleDown(ctx context.Context) error {
	s.say("The EndpointSlice without %s arrives. New connections go to the others.", s.last)
	less := s.slice.DeepCopy()
	less.Endpoints = less.Endpoints[:len(less.Endpoints)-1]
	s.proxy.UpdateEndpointSlice(less)
	return s.applyAndSpread(ctx, s.isOther)
}

func (s *story) scaleUp(ctx context.Context) error {
	s.say("The whole EndpointSlice arrives again.")
	s.proxy.UpdateEndpointSlice(&s.slice)
	return s.applyAndSpread(ctx, s.isPod)
}

// terminate shows how a pod ends without any client noticing: it still serves its open
// connections, and gets no new ones as long as there are other pods.
func (s *story) terminate(ctx context.Context) error {
	open := newClient(s.network.client, true)
	defer open.CloseIdleConnections()
	if _, err := askUntil(ctx, open, s.vip, s.last); err != nil {
		return err
	}
	s.say("Its endpoint becomes ready: false, serving: true, terminating: true.")
	slice := s.slice.DeepCopy()
	c := &slice.Endpoints[len(slice.Endpoints)-1].Conditions
	c.Ready, c.Serving, c.Terminating = new(false), new(true), new(true)
	s.proxy.UpdateEndpointSlice(slice)
	if err := s.awaitApplied(ctx); err != nil {
		return err
	}
	name, _, err := ask(ctx, open, s.vip)
	if err != nil {
		return fmt.Errorf("a connection that was open: %w", err)
	}
	if name != s.last {
		return fmt.Errorf("a connection to %s was open, but a request on it went to %s", s.last, name)
	}
	s.say("An open connection to %s continues; new ones avoid it:", s.last)
	if err := s.spread(ctx, s.isOther); err != nil {
		return err
	}
	s.say("Then it is ready again.")
	s.proxy.UpdateEndpointSlice(&s.slice)
	return s.awaitApplied(ctx)
}

func (s *story) stick(ctx context.Context) error {
	s.say("The Service gets sessionAffinity: ClientIP. The first connection decides.")
	sticky := s.service.DeepCopy()
	sticky.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	s.proxy.UpdateService(sticky)
	if err := s.awaitApplied(ctx); err != nil {
		return err
	}
	first, _, err := ask(ctx, s.client, s.vip)
	if err != nil {
		return err
	}
	return s.spread(ctx, func(name string) bool { return name == first })
}

// why shows the verdict of the library, not of the kernel: proxy.Route is the specification of
// every backend, and returns its verdict with reasons.
func (s *story) why(ctx context.Context) error {
	s.say("proxy.Route answers for the client's packets to %s:", s.vip)
	if n := len(s.explain(s.vip).Endpoints); n != len(s.pods) {
		return fmt.Errorf("the verdict leads to %d pods, but must lead to %d", n, len(s.pods))
	}
	return ctx.Err()
}

func (s *story) wrongPort(ctx context.Context) error {
	wrong := netip.AddrPortFrom(s.vip.Addr(), s.vip.Port()+1)
	name, _, err := ask(ctx, s.client, wrong)
	if err == nil {
		return fmt.Errorf("%s answers at %s, which must refuse connections", name, wrong)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s must refuse connections at once: %w", wrong, err)
	}
	s.say("A request to %s fails at once, and not after a long time (%v):", wrong, syscall.ECONNREFUSED)
	if action := s.explain(wrong).Action; action != proxy.Reject {
		return fmt.Errorf("the verdict for %v is %v, but must be %v", wrong, action, proxy.Reject)
	}
	return nil
}

// explain shows what must happen to the client's packets to an address, and why.
func (s *story) explain(to netip.AddrPort) proxy.Verdict {
	verdict := proxy.Route(s.proxy.applied, proxy.Packet{
		Protocol:    v1.ProtocolTCP,
		Source:      netip.AddrPortFrom(netip.MustParseAddr(clientAddr), 40000),
		Destination: to,
		Interface:   clientLink,
	})
	for _, r := range verdict.Reasons {
		s.say("  - %s", r)
	}
	s.say("  => %v", verdict.Action)
	return verdict
}

// end checks that nothing answers after the proxy has cleaned up, and says where to read on.
func (s *story) end(ctx context.Context) error {
	return s.step(ctx, "Everything is removed", func(ctx context.Context) error {
		name, _, err := ask(ctx, s.client, s.vip)
		if err == nil {
			return fmt.Errorf("%s still answers at %s, although the proxy has cleaned up", name, s.vip)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.say("The proxy has removed what it put into the kernel, so %s is unreachable.", s.vip)
		s.say("The network was made of namespaces that end with this program. All is well.")
		s.print(`
Where to go next
   - examples/quickstart/manifest.yaml: change it and run again; proxy_linux.go is the proxy that you saw
   - go run ./examples/manifestproxy -demo: a proxy for Services from files, which you can edit while it runs
   - README.md, "A whole proxy": examples/embed, one short file
   - examples/kubeproxy: an agent in the place of kube-proxy, in a real cluster
   - docs/architecture.md: how a Service gets into the kernel, and where to read on`)
		return nil
	})
}

// awaitApplied waits until the kernel has all changes, and shows what that took.
func (s *story) awaitApplied(ctx context.Context) error {
	sync, err := s.proxy.awaitApplied(ctx)
	if err == nil {
		s.say("Kernel operations: %d, in %v.", sync.Operations, sync.Duration.Round(10*time.Microsecond))
	}
	return err
}

func (s *story) applyAndSpread(ctx context.Context, wanted func(name string) bool) error {
	if err := s.awaitApplied(ctx); err != nil {
		return err
	}
	return s.spread(ctx, wanted)
}

// spread sends requests, shows how many each pod answers, and checks that exactly the
// wanted pods answer.
func (s *story) spread(ctx context.Context, wanted func(name string) bool) error {
	counts := map[string]int{}
	for range s.requests() {
		name, _, err := ask(ctx, s.client, s.vip)
		if err != nil {
			return err
		}
		counts[name]++
	}
	var err error
	for _, p := range s.pods {
		n := counts[p.name]
		s.say("  %-6s %-12s %2d %s", p.name, p.addr.Addr(), n, strings.Repeat("█", n/2))
		switch want := wanted(p.name); {
		case want && n == 0:
			err = fmt.Errorf("%s must answer, but got none of %d requests", p.name, s.requests())
		case !want && n > 0:
			err = fmt.Errorf("%s still answers: it got %d of %d requests, but must get none", p.name, n, s.requests())
		}
	}
	return err
}

// requests returns how many requests spread sends: so many that the probability of a pod getting
// none by chance is less than one in a hundred million.
func (s *story) requests() int { return 20 * len(s.pods) }

func (s *story) isPod(string) bool { return true }

func (s *story) isOther(name string) bool { return name != s.last }
