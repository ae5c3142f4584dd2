package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

func (s *story) appear(ctx context.Context) error {
	s.proxy.UpdateService(s.service)
	s.proxy.UpdateEndpointSlice(s.slice)
	s.proxy.Synced() // That was all there is; from here on there are snapshots.
	s.say("The Service %q has the virtual IP %s. No machine has that address: the node's", s.service.Name, s.vip.Addr())
	s.say("nftables send connections to it on to the pods.")
	return s.settle(ctx)
}

func (s *story) use(ctx context.Context) error {
	s.say("It sends %d requests to %s. Each connection goes to a pod by chance.", s.requests(), s.vip)
	return s.spread(ctx, s.pods)
}

func (s *story) scaleDown(ctx context.Context) error {
	s.say("The EndpointSlice without %s arrives. New connections go to the others.", s.last().name)
	less := s.slice.DeepCopy()
	less.Endpoints = less.Endpoints[:len(less.Endpoints)-1]
	s.proxy.UpdateEndpointSlice(less)
	if err := s.settle(ctx); err != nil {
		return err
	}
	return s.spread(ctx, s.others())
}

func (s *story) scaleUp(ctx context.Context) error {
	s.say("The whole EndpointSlice arrives again.")
	s.proxy.UpdateEndpointSlice(s.slice)
	if err := s.settle(ctx); err != nil {
		return err
	}
	return s.spread(ctx, s.pods)
}

// terminate shows how a pod goes without anybody noticing: it still serves whom
// it has, and gets nobody new as long as there are others.
func (s *story) terminate(ctx context.Context) error {
	open := newCaller(s.network.client, true)
	defer open.close()
	if _, err := open.askUntil(ctx, s.vip, s.last().name); err != nil {
		return err
	}
	s.say("Its endpoint becomes ready: false, serving: true, terminating: true.")
	slice := s.slice.DeepCopy()
	c := &slice.Endpoints[len(slice.Endpoints)-1].Conditions
	c.Ready, c.Serving, c.Terminating = new(false), new(true), new(true)
	s.proxy.UpdateEndpointSlice(slice)
	if err := s.settle(ctx); err != nil {
		return err
	}
	a, err := open.ask(ctx, s.vip)
	if err != nil {
		return fmt.Errorf("a connection that was open: %w", err)
	}
	if a.pod != s.last().name {
		return fmt.Errorf("a connection to %s was open, but a request on it went to %s", s.last().name, a.pod)
	}
	s.say("A connection to %s that was open goes on; new ones avoid it:", a.pod)
	if err := s.spread(ctx, s.others()); err != nil {
		return err
	}
	s.say("Then it is ready again.")
	s.proxy.UpdateEndpointSlice(s.slice)
	return s.settle(ctx)
}

func (s *story) stick(ctx context.Context) error {
	s.say("The Service gets sessionAffinity: ClientIP. The first connection decides.")
	sticky := s.service.DeepCopy()
	sticky.Spec.SessionAffinity = v1.ServiceAffinityClientIP
	s.proxy.UpdateService(sticky)
	if err := s.settle(ctx); err != nil {
		return err
	}
	counts, err := s.count(ctx)
	if err != nil {
		return err
	}
	if len(counts) != 1 {
		return fmt.Errorf("%d pods answered one client in spite of session affinity", len(counts))
	}
	return nil
}
