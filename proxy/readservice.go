package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Limits of one Service, so that no object, by mistake or by intent, needs as much memory
// and time as a large part of all Services together.
const (
	maxAddresses = 1000
	// maxFrontends is how many pairs of an external address and a port a Service may have. A
	// ClusterIP and node ports do not count: their number is that of the ports in the object.
	maxFrontends = 50_000
	// maxAnnotation is how many bytes the value of an annotation may have.
	maxAnnotation = 4096
	// maxProblems is how many errors of a Service, or of an EndpointSlice, are reported.
	maxProblems = 100
)

// specReader reads one Service and collects its problems.
type specReader struct {
	service  *v1.Service
	options  *TrackerOptions
	problems []*Problem
}

// readService returns nil for a Service that needs no proxy: headless, without
// ClusterIP yet, or an external name.
func readService(s *v1.Service, o *TrackerOptions) *serviceSpec {
	spec := &s.Spec
	if spec.ClusterIP == "" || spec.ClusterIP == v1.ClusterIPNone || spec.Type == v1.ServiceTypeExternalName {
		return nil
	}
	r := &specReader{service: s, options: o}
	out := &serviceSpec{
		name:          types.NamespacedName{Namespace: s.Namespace, Name: s.Name},
		created:       s.CreationTimestamp.Time,
		internalLocal: spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == v1.ServiceInternalTrafficPolicyLocal,
		externalLocal: spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal && hasExternalAddresses(spec, o),
	}
	out.affinity = r.affinity()
	if spec.Type == v1.ServiceTypeLoadBalancer && out.externalLocal {
		out.healthCheckNodePort = r.port("spec.healthCheckNodePort", spec.HealthCheckNodePort)
	}
	out.annotations = r.annotations()
	for _, family := range ipaddr.Families() {
		out.ports = append(out.ports, r.ports(out.name, family)...)
	}
	out.problems = r.problems
	return out
}

// maxAffinityTimeout is the longest timeout that the API accepts.
const maxAffinityTimeout = 24 * time.Hour

// affinity reads the session affinity. A kind that the API would refuse is none, and a
// timeout that it would refuse the nearest meaning.
func (r *specReader) affinity() affinity.Config {
	spec := &r.service.Spec
	switch spec.SessionAffinity {
	case "", v1.ServiceAffinityNone:
		return affinity.Config{}
	case v1.ServiceAffinityClientIP:
	default:
		r.report("spec.sessionAffinity", fmt.Errorf("unknown kind %q", spec.SessionAffinity))
		return affinity.Config{}
	}
	c := spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return affinity.Config{Timeout: affinity.DefaultTimeout}
	}
	timeout := time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
	if timeout > 0 && timeout <= maxAffinityTimeout {
		return affinity.Config{Timeout: timeout}
	}
	r.report("spec.sessionAffinityConfig.clientIP.timeoutSeconds", fmt.Errorf("%v is not within 1s and %v", timeout, maxAffinityTimeout))
	if timeout > 0 {
		return affinity.Config{Timeout: maxAffinityTimeout}
	}
	return affinity.Config{Timeout: affinity.DefaultTimeout}
}

// hasExternalAddresses reports whether the external traffic policy of a Service
// applies: other Services have no external addresses.
func hasExternalAddresses(spec *v1.ServiceSpec, o *TrackerOptions) bool {
	return spec.Type == v1.ServiceTypeLoadBalancer || spec.Type == v1.ServiceTypeNodePort ||
		len(spec.ExternalIPs) > 0 && !o.IgnoreExternalIPs
}

// report adds the problem of a field that has an invalid value, once: both families read most fields.
func (r *specReader) report(field string, err error) { r.add(field, InvalidValue, err) }

// tooMany adds the problem of a field that is larger than its limit, once.
func (r *specReader) tooMany(field, format string, args ...any) {
	r.add(field, TooMany, fmt.Errorf(format, args...))
}

func (r *specReader) add(field string, reason Reason, err error) {
	switch {
	case len(r.problems) > maxProblems:
		return
	case slices.ContainsFunc(r.problems, func(p *Problem) bool { return p.Field == field }):
		return
	case len(r.problems) == maxProblems:
		field, reason, err = "spec", TooMany, fmt.Errorf("more than %d errors; the others are not listed", maxProblems)
	}
	name := types.NamespacedName{Namespace: r.service.Namespace, Name: r.service.Name}
	r.problems = append(r.problems, &Problem{Kind: "Service", NamespacedName: name, Field: field, Reason: reason, Err: err})
}

// annotations returns the annotations that the options name; nil if the Service has none of them.
func (r *specReader) annotations() (out map[string]string) {
	for _, key := range r.options.Annotations {
		value, ok := r.service.Annotations[key]
		switch {
		case !ok:
		case len(value) > maxAnnotation:
			r.tooMany(fmt.Sprintf("metadata.annotations[%s]", key), "%d bytes are more than %d: the annotation is ignored", len(value), maxAnnotation)
		default:
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

// port reads a port number; zero means none.
func (r *specReader) port(field string, n int32) uint16 {
	if n < 0 || n > 65535 {
		r.report(field, fmt.Errorf("%d is not a port number", n))
		return 0
	}
	return uint16(n)
}

func (r *specReader) ports(service types.NamespacedName, family v1.IPFamily) []portSpec {
	addresses, ok := r.addresses(family)
	if !ok {
		return nil
	}
	var out []portSpec
	var index map[ServicePortName]int // nil if a search of all ports is cheaper
	if len(r.service.Spec.Ports) > 16 {
		index = make(map[ServicePortName]int, len(r.service.Spec.Ports))
	}
	for i := range r.service.Spec.Ports {
		port := &r.service.Spec.Ports[i]
		field := fmt.Sprintf("spec.ports[%d]", i)
		protocol, err := readProtocol(port.Protocol)
		if err != nil {
			r.report(field+".protocol", err)
			continue
		}
		number := r.port(field+".port", port.Port)
		if number == 0 {
			r.report(field+".port", errors.New("0 is not a port number"))
			continue
		}
		p := portSpec{
			name:      ServicePortName{NamespacedName: service, Port: port.Name, Protocol: protocol, Family: family},
			number:    number,
			nodePort:  r.port(field+".nodePort", port.NodePort),
			addresses: addresses,
		}
		if earlier := findPort(out, index, p.name); earlier >= 0 {
			r.report(field, fmt.Errorf("duplicate port %q/%s: earlier entry ignored", port.Name, protocol))
			out[earlier] = p
			continue
		}
		if index != nil {
			index[p.name] = len(out)
		}
		out = append(out, p)
	}
	return out
}

// findPort returns the index of a port, or -1. If index is not nil, it has all of them.
func findPort(all []portSpec, index map[ServicePortName]int, name ServicePortName) int {
	if i, ok := index[name]; ok {
		return i
	}
	if index != nil {
		return -1
	}
	return slices.IndexFunc(all, func(p portSpec) bool { return p.name == name })
}

func readProtocol(p v1.Protocol) (v1.Protocol, error) {
	switch p {
	case "":
		return v1.ProtocolTCP, nil
	case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
		return p, nil
	}
	return "", fmt.Errorf("unknown protocol %q", p)
}

// clusterIP finds the ClusterIP of a family. Objects from before dual stack
// have only spec.clusterIP, whose family is that of the address.
func (r *specReader) clusterIP(family v1.IPFamily) (netip.Addr, bool) {
	spec := &r.service.Spec
	text, field := spec.ClusterIP, "spec.clusterIP"
	if len(spec.IPFamilies) > 0 {
		i := slices.Index(spec.IPFamilies, family)
		switch {
		case i == 0 && len(spec.ClusterIPs) == 0: // An API server copies spec.clusterIP to the list; a file may lack that.
		case i < 0 || i >= len(spec.ClusterIPs):
			return netip.Addr{}, false
		default:
			text, field = spec.ClusterIPs[i], fmt.Sprintf("spec.clusterIPs[%d]", i)
		}
	}
	a, err := ipaddr.Parse(text)
	if err == nil {
		if len(spec.IPFamilies) == 0 && ipaddr.FamilyOf(a) != family {
			return netip.Addr{}, false
		}
		err = r.checkFamily(a, family)
	} else if len(spec.IPFamilies) == 0 && family == v1.IPv6Protocol {
		return netip.Addr{}, false // reported once, for the first family
	}
	if err != nil {
		r.report(field, err)
		return netip.Addr{}, false
	}
	return a, true
}

func (r *specReader) checkFamily(a netip.Addr, family v1.IPFamily) error {
	if ipaddr.FamilyOf(a) != family {
		return fmt.Errorf("%s is not an %s address", a, family)
	}
	return ipaddr.CheckVirtualIP(a)
}

// addresses reads all addresses of a family, each once; ok reports whether there is a
// ClusterIP. The source ranges apply to an address that is both an external IP and a
// load balancer's.
func (r *specReader) addresses(family v1.IPFamily) (out *addresses, ok bool) {
	out = &addresses{}
	if out.clusterIP, ok = r.clusterIP(family); !ok {
		return nil, false
	}
	seen := map[netip.Addr]bool{out.clusterIP: true}
	once := func(kind FrontendKind, all []netip.Addr) (list []externalAddr) {
		for _, a := range all {
			if !seen[a] {
				seen[a] = true
				list = append(list, externalAddr{addr: a, kind: kind})
			}
		}
		return list
	}
	external := r.externalIPs(family)
	out.restricted, out.sources = r.sourceRanges(family)
	balancers := once(LoadBalancer, r.loadBalancerIPs(family))
	others := once(ExternalIP, external)
	if most := maxFrontends / max(1, len(r.service.Spec.Ports)); len(others)+len(balancers) > most {
		r.tooMany("spec.ports", "%d external addresses are too many for %d ports: %d of them are not served",
			len(others)+len(balancers), len(r.service.Spec.Ports), len(others)+len(balancers)-most)
		balancers = balancers[:min(most, len(balancers))]
		others = others[:min(most-len(balancers), len(others))]
	}
	out.external = append(others, balancers...)
	if most := maxSlots / max(1, len(balancers)*len(r.service.Spec.Ports)); len(out.sources) > most {
		r.tooMany("spec.loadBalancerSourceRanges", "%d ranges are too many for %d addresses at %d ports: %d of them are ignored, and their clients denied",
			len(out.sources), len(balancers), len(r.service.Spec.Ports), len(out.sources)-most)
		out.sources = slices.Clip(out.sources[:most])
	}
	return out, true
}

func (r *specReader) externalIPs(family v1.IPFamily) (out []netip.Addr) {
	list := r.service.Spec.ExternalIPs
	if r.options.IgnoreExternalIPs {
		list = nil
	}
	for i, text := range list {
		if i == maxAddresses {
			r.tooMany("spec.externalIPs", "more than %d entries; the rest is ignored", maxAddresses)
			break
		}
		if a, ok := r.address(fmt.Sprintf("spec.externalIPs[%d]", i), text, family, ipaddr.CheckExternalIP); ok {
			out = append(out, a)
		}
	}
	return out
}

func (r *specReader) loadBalancerIPs(family v1.IPFamily) (out []netip.Addr) {
	for i, in := range r.service.Status.LoadBalancer.Ingress {
		if i == maxAddresses {
			r.tooMany("status.loadBalancer.ingress", "more than %d entries; the rest is ignored", maxAddresses)
			break
		}
		if in.IPMode != nil && *in.IPMode != v1.LoadBalancerIPModeVIP {
			continue
		}
		if a, ok := r.address(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP, family, ipaddr.CheckVirtualIP); ok {
			out = append(out, a)
		}
	}
	return out
}

// address reads an external address.
func (r *specReader) address(field, text string, family v1.IPFamily, check func(netip.Addr) error) (netip.Addr, bool) {
	if strings.TrimSpace(text) == "" {
		return netip.Addr{}, false
	}
	a, err := ipaddr.Parse(text)
	if err == nil {
		err = check(a)
	}
	if err != nil {
		r.report(field, err)
		return netip.Addr{}, false
	}
	return a, ipaddr.FamilyOf(a) == family
}

// sourceRanges returns the allowed clients of load-balancer IPs. A list that has
// entries, but none that is usable for the family, allows no client: a typing
// error must not open an address that was meant to be restricted.
func (r *specReader) sourceRanges(family v1.IPFamily) (restricted bool, sources []netip.Prefix) {
	for i, text := range r.service.Spec.LoadBalancerSourceRanges {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		restricted = true
		p, err := ipaddr.ParsePrefix(text)
		switch {
		case err != nil:
			r.report(fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), err)
		case ipaddr.FamilyOf(p.Addr()) != family:
		case p.Bits() == 0:
			return false, nil
		default:
			sources = append(sources, p)
		}
	}
	return restricted, tidyPrefixes(sources)
}

// tidyPrefixes sorts prefixes and drops those that lie within another.
func tidyPrefixes(in []netip.Prefix) []netip.Prefix {
	slices.SortFunc(in, netip.Prefix.Compare)
	out := in[:0]
	for _, p := range in {
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}
