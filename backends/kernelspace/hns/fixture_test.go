package hns

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/internal/testing/simhns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a simulated HNS with a network, and a client of it. Under Wine the client's calls go
// through the library that stands in for computenetwork.dll; elsewhere they go to the service.
type machine struct {
	*Client
	sim       *hcntest.Sim
	service   *simhns.Service
	networkID string
	// setDown says whether HNS runs.
	setDown func(down bool)
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	sim := hcntest.New(hcn.Version{Major: 15, Minor: 5}, addr("192.0.2.1"))
	m := &machine{sim: sim, service: simhns.New(sim)}
	t.Cleanup(m.service.Close)
	m.open(t)
	m.networkID = sim.AddNetwork(hcn.Network{Name: "cbr0", Type: "L2Bridge"})
	t.Cleanup(func() {
		m.service.SetFault(nil)
		if err := m.Close(); err != nil {
			t.Errorf("closing the client: %v", err)
		}
		if n := m.service.OpenHandles(); n != 0 {
			t.Errorf("open handles at the end: got %d, want 0", n)
		}
	})
	if e, err := m.Wait(t.Context()); e != hcn.NetworksChanged || err != nil {
		t.Fatalf("the network was made: got event %d, %v, want %d", e, err, hcn.NetworksChanged)
	}
	if _, err := m.Network(t.Context(), "cbr0"); err != nil {
		t.Fatal(err)
	}
	m.service.Functions()
	return m
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// endpoint makes an endpoint of another node's pod.
func (m *machine) endpoint(t *testing.T, address string) (id string) {
	t.Helper()
	id, err := m.CreateEndpoint(t.Context(), hcn.Endpoint{
		NetworkID: m.networkID, Addresses: []netip.Addr{addr(address)}, MAC: "02-11-0A-01-00-09", Remote: true,
	})
	if err != nil {
		t.Fatalf("creating an endpoint: %v", err)
	}
	return id
}

// balancer returns a load balancer of an endpoint.
func balancer(endpoint string, port uint16) hcn.LoadBalancer {
	return hcn.LoadBalancer{
		Endpoints: []string{endpoint}, SourceVIP: addr("10.1.0.2"), FrontendVIPs: []netip.Addr{addr("10.96.0.10")}, Flags: hcn.DSR,
		PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: port, Distribution: hcn.BySource, Flags: hcn.LocalRoutedVIP}},
	}
}
