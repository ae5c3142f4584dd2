package hcntest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// Dump returns the load balancers, and the endpoints that no CNI plugin has made, one on a line, in
// an order that depends on their content alone. It has no IDs, so that the dumps of equal
// dataplanes are equal.
func (s *Sim) Dump() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for _, b := range s.loadBalancers {
		lines = append(lines, text(&b, s.endpoints))
	}
	for _, e := range s.endpoints {
		if e.Remote || e.MAC != "" {
			lines = append(lines, endpointText(&e))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// LoadBalancers returns copies of all load balancers, in the order of their dump.
func (s *Sim) LoadBalancers() []hcn.LoadBalancer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []hcn.LoadBalancer
	for _, b := range s.loadBalancers {
		all = append(all, clone(&b))
	}
	slices.SortFunc(all, func(a, b hcn.LoadBalancer) int {
		return strings.Compare(text(&a, s.endpoints), text(&b, s.endpoints))
	})
	return all
}

// Endpoints returns copies of all endpoints, by address.
func (s *Sim) Endpoints() []hcn.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []hcn.Endpoint
	for _, e := range s.endpoints {
		e.Addresses = slices.Clone(e.Addresses)
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b hcn.Endpoint) int { return slices.CompareFunc(a.Addresses, b.Addresses, netip.Addr.Compare) })
	return all
}

func endpointText(e *hcn.Endpoint) string {
	kind := "local"
	if e.Remote {
		kind = "remote"
	}
	return strings.TrimSpace(fmt.Sprintf("endpoint %s %s mac %s %s", kind, addresses(e.Addresses), e.MAC, provider(e)))
}

func provider(e *hcn.Endpoint) string {
	if !e.ProviderAddress.IsValid() {
		return ""
	}
	return "provider " + e.ProviderAddress.String()
}

func addresses(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}

// text returns a load balancer as a line.
func text(b *hcn.LoadBalancer, endpoints map[string]hcn.Endpoint) string {
	var ports, to []string
	for _, p := range b.PortMappings {
		ports = append(ports, fmt.Sprintf("%d/%d->%d distribution %d flags %d", p.ExternalPort, p.Protocol, p.InternalPort, p.Distribution, p.Flags))
	}
	for _, id := range b.Endpoints {
		e, ok := endpoints[id]
		if !ok {
			to = append(to, "missing")
			continue
		}
		kind := "local "
		if e.Remote {
			kind = "remote "
		}
		to = append(to, kind+addresses(e.Addresses))
	}
	slices.Sort(to)
	line := fmt.Sprintf("load balancer %s:%s flags %d", addresses(b.FrontendVIPs), strings.Join(ports, " "), b.Flags)
	if b.SourceVIP.IsValid() {
		line += " source " + b.SourceVIP.String()
	}
	return line + " to " + strings.Join(to, "; ")
}
