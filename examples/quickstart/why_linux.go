package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

func (s *story) sources(ctx context.Context) error {
	s.say("Replies must come back through the node, which has changed the destination. Where that")
	s.say("is not certain, it puts its own address in place of the caller's (masquerade).")
	first, last := s.pods[0], s.last()
	fromPod, node := newCaller(s.network.pods[0], false), netip.MustParseAddr(nodeForPods)
	for _, who := range []struct {
		name   string
		caller caller
		to     string
		sees   netip.Addr
		why    string
	}{
		{"the client", s.client, last.name, node, "the node, for callers from outside"},
		{first.name, fromPod, last.name, first.addr.Addr(), "the caller itself"},
		{first.name, fromPod, first.name, node, "the node, or the pod would talk to itself"},
	} {
		a, err := who.caller.askUntil(ctx, s.vip, who.to)
		if err != nil {
			return err
		}
		if a.sees != who.sees {
			return fmt.Errorf("%s calls, and %s sees %v, but should see %v", who.name, a.pod, a.sees, who.sees)
		}
		s.say("  %-10s -> %-6s sees %-12s (%s)", who.name, a.pod, a.sees, who.why)
	}
	return nil
}

// why asks the library instead of the kernel: proxy.Route gives the verdict that
// every backend is held to, with the reasons.
func (s *story) why(ctx context.Context) error {
	verdict := s.route(s.vip)
	if verdict.Action != proxy.Forward || len(verdict.Endpoints) != len(s.pods) {
		return fmt.Errorf("the verdict is %v to %v, but should be %v to %d pods", verdict.Action, verdict.Endpoints, proxy.Forward, len(s.pods))
	}
	s.say("proxy.Route answers for the client's packets to %s:", s.vip)
	s.reasons(verdict)
	return ctx.Err()
}

func (s *story) wrongPort(ctx context.Context) error {
	wrong := netip.AddrPortFrom(s.vip.Addr(), s.vip.Port()+1)
	if verdict := s.route(wrong); verdict.Action != proxy.Reject {
		return fmt.Errorf("the verdict for %v is %v, but should be %v", wrong, verdict.Action, proxy.Reject)
	}
	a, err := s.client.ask(ctx, wrong)
	if err == nil {
		return fmt.Errorf("%s answers at %s, but nobody should", a.pod, wrong)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s should refuse connections at once: %w", wrong, err)
	}
	s.say("A request to %s fails at once, and not after a long time (%v):", wrong, reason(err))
	s.reasons(s.route(wrong))
	return nil
}

// route asks what must become of a packet of the client's.
func (s *story) route(to netip.AddrPort) proxy.Verdict {
	return proxy.Route(s.proxy.last.Snapshot, proxy.Packet{
		Protocol:    v1.ProtocolTCP,
		Source:      netip.AddrPortFrom(netip.MustParseAddr(clientAddr), 40000),
		Destination: to,
		Interface:   clientLink,
	})
}

func (s *story) reasons(v proxy.Verdict) {
	for _, r := range v.Reasons {
		s.say("  - %s", r)
	}
	s.say("  => %v", v.Action)
}
