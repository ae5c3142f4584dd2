package backendtest

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// testSCTP compares the outcomes of SCTP connections with [proxy.Route]. Services have ports of
// TCP and UDP with the same numbers.
func (c *Config) testSCTP(t *testing.T) {
	s := c.setUp(t)
	served, local := exposed(3, cluster.Local, cluster.Remote), exposed(4, cluster.Local, cluster.Remote)
	local.External = v1.ServiceExternalTrafficPolicyLocal
	unserved := &cluster.Sample{Number: 5, Type: v1.ServiceTypeNodePort}
	var all []cluster.Objects
	var flights []flight
	for _, x := range []*cluster.Sample{served, local, unserved} {
		all = append(all, withSCTP(x.Objects()))
		flights = append(flights, flightsTo(x, clients([]v1.Protocol{v1.ProtocolSCTP}, cluster.Client, cluster.Local, cluster.Node, cluster.Outside))...)
	}
	snapshot := snapshotOf(t, nodeOptions(), all...)
	if c.lacks(SCTP) {
		s.refuses(t, snapshot, func(p *proxy.ServicePort) bool { return p.Name.Protocol == v1.ProtocolSCTP })
		return
	}
	s.serveSCTP(t, cluster.Local)
	s.serveSCTP(t, cluster.Remote)
	s.apply(t, snapshot)
	flights = slices.DeleteFunc(flights, func(f flight) bool {
		return proxy.Route(snapshot, s.packet(f)).Action == proxy.Pass // The gateway has no server of SCTP.
	})
	s.checkFlights(t, snapshot, flights)
}

// withSCTP adds a port of SCTP to Services and slices, with the numbers of their first port.
func withSCTP(o cluster.Objects) cluster.Objects {
	name, protocol := string(v1.ProtocolSCTP), v1.ProtocolSCTP
	for _, s := range o.Services {
		port := s.Spec.Ports[0]
		port.Name, port.Protocol = name, protocol
		s.Spec.Ports = append(s.Spec.Ports, port)
	}
	for _, s := range o.Slices {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: s.Ports[0].Port})
	}
	return o
}

// hasSCTP reports whether the kernel makes sockets of SCTP.
func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	return err == nil && unix.Close(fd) == nil
}

// serveSCTP starts servers on the ports of a host, one at each of its addresses: a server
// at all of them would offer them all to its clients, which would then not use Services alone.
func (s *stage) serveSCTP(t *testing.T, at cluster.Name) {
	t.Helper()
	for _, known := range cluster.Servers() {
		for _, port := range known.Ports {
			for _, a := range s.host(at).Addrs {
				if known.At != at {
					continue
				}
				listener, err := s.host(at).ns.ListenSCTP(netip.AddrPortFrom(a, port))
				testenv.NoError(t, err)
				testenv.CloseAtEnd(t, lab.ServeOn(listener, known.Name))
			}
		}
	}
}
