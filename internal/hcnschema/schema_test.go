package hcnschema_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/hcnschema"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func compareValues() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}) }

const (
	id1 = "8f6f2a1e-0000-4000-8000-00000000000a"
	id2 = "8f6f2a1e-0000-4000-8000-00000000000b"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// object is one object in both forms.
type object[T any] struct {
	name, text string
	value      T
}

func checkObjects[T any](t *testing.T, read func(string) (T, error), write func(T) string, all []object[T]) {
	t.Helper()
	for _, o := range all {
		t.Run(o.name, func(t *testing.T) {
			got, err := read(o.text)
			testenv.NoError(t, err)
			if diff := cmp.Diff(o.value, got, compareValues()); diff != "" {
				t.Errorf("reading (-want +got):\n%s", diff)
			}
			testenv.Same(t, members(t, o.text), members(t, write(o.value)), "writing")
		})
	}
}

func members(t *testing.T, text string) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// The texts are what HNS documents, so that reading and writing cannot agree on something else.
func TestObjects(t *testing.T) {
	checkObjects(t, hcnschema.Endpoint, hcnschema.EndpointText, []object[hcn.Endpoint]{
		{
			"of another node, overlay",
			`{"Name":"e","HostComputeNetwork":"` + id1 + `","IpConfigurations":[{"IpAddress":"10.1.0.9"}],"MacAddress":"02-11-0A-01-00-09",
			"Flags":1,"Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.0.2.7"}}],"SchemaVersion":{"Major":2,"Minor":0}}`,
			hcn.Endpoint{
				Name: "e", NetworkID: id1, Addresses: []netip.Addr{addr("10.1.0.9")}, MAC: "02-11-0A-01-00-09", Remote: true,
				ProviderAddress: addr("192.0.2.7"),
			},
		},
		{
			"of this node, dual stack",
			`{"ID":"` + id2 + `","HostComputeNetwork":"` + id1 + `","IpConfigurations":[{"IpAddress":"10.1.0.9"},{"IpAddress":"fd00::9"}],"SchemaVersion":{"Major":2,"Minor":0}}`,
			hcn.Endpoint{ID: id2, NetworkID: id1, Addresses: []netip.Addr{addr("10.1.0.9"), addr("fd00::9")}},
		},
	})
	checkObjects(t, hcnschema.LoadBalancer, hcnschema.LoadBalancerText, []object[hcn.LoadBalancer]{
		{
			"cluster IP",
			`{"HostComputeEndpoints":["` + id1 + `","` + id2 + `"],"SourceVIP":"10.1.0.2","FrontendVIPs":["10.96.0.10"],
			"PortMappings":[{"Protocol":17,"InternalPort":5353,"ExternalPort":53,"DistributionType":2}],"Flags":1,"SchemaVersion":{"Major":2,"Minor":0}}`,
			hcn.LoadBalancer{
				Endpoints: []string{id1, id2}, SourceVIP: addr("10.1.0.2"), FrontendVIPs: []netip.Addr{addr("10.96.0.10")}, Flags: hcn.DSR,
				PortMappings: []hcn.PortMapping{{Protocol: 17, InternalPort: 5353, ExternalPort: 53, Distribution: hcn.BySource}},
			},
		},
		{
			"node port, IPv6",
			`{"ID":"` + id2 + `","HostComputeEndpoints":["` + id1 + `"],"PortMappings":[{"Protocol":6,"InternalPort":80,"ExternalPort":30080,"Flags":18}],
			"Flags":2,"SchemaVersion":{"Major":2,"Minor":0}}`,
			hcn.LoadBalancer{
				ID: id2, Endpoints: []string{id1}, Flags: hcn.IPv6,
				PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: 80, ExternalPort: 30080, Flags: hcn.VIPExternalIP | hcn.LocalRoutedVIP}},
			},
		},
	})
	checkObjects(t, hcnschema.Network, hcnschema.NetworkText, []object[hcn.Network]{
		{
			"overlay",
			`{"ID":"` + id1 + `","Name":"vxlan0","Type":"Overlay","SchemaVersion":{"Major":2,"Minor":0},"Ipams":[{"Subnets":[
			{"IpAddressPrefix":"10.1.1.0/24"},{"IpAddressPrefix":"fd00:1::/64"}]}],"Policies":[
			{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"10.1.2.0/24","ProviderAddress":"192.0.2.7"}}]}`,
			hcn.Network{
				ID: id1, Name: "vxlan0", Type: "Overlay", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24"), netip.MustParsePrefix("fd00:1::/64")},
				RemoteSubnets: []hcn.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.1.2.0/24"), ProviderAddress: addr("192.0.2.7")}},
			},
		},
		{
			"bridge", `{"ID":"` + id1 + `","Name":"cbr0","Type":"L2Bridge","SchemaVersion":{"Major":2,"Minor":0}}`,
			hcn.Network{ID: id1, Name: "cbr0", Type: "L2Bridge"},
		},
	})
}

// What other programs put into objects must not make them unreadable.
func TestReadingIsLenient(t *testing.T) {
	n, err := hcnschema.Network(`{"ID":"{8F6F2A1E-0000-4000-8000-00000000000A}","Name":"nat","Flags":"x","Ipams":[{},{"Type":"Static","Subnets":[
		{"IpAddressPrefix":"","Routes":[7]},{"IpAddressPrefix":"10.1.1.1/24","Policies":[{"Type":"VSID"}]}]}],"Policies":[
		{"Type":"VSwitchExtension","Settings":7},{"Type":"RemoteSubnetRoute","Settings":7},
		{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"all","ProviderAddress":"192.0.2.7"}},
		{"Type":"RemoteSubnetRoute","Settings":{"IsolationId":4096,"DestinationPrefix":"10.1.2.3/24","ProviderAddress":"192.0.2.7"}}]}`)
	want := hcn.Network{ID: id1, Name: "nat", Type: "NAT", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24")}, RemoteSubnets: []hcn.RemoteSubnet{{Prefix: netip.MustParsePrefix("10.1.2.0/24"), ProviderAddress: addr("192.0.2.7")}}}
	if diff := cmp.Diff(want, n, compareValues()); diff != "" || err != nil {
		t.Errorf("network: error %v, (-want +got):\n%s", err, diff)
	}
	e, err := hcnschema.Endpoint(`{"Policies":[{"Type":"ProviderAddress","Settings":[]},{"Type":"OutBoundNAT","Settings":{}}],"Flags":33,
		"IpConfigurations":[{"IpAddress":"","PrefixLength":24},{"IpAddress":"::ffff:10.1.0.9","PrefixLength":24}],"Health":{"Extra":{}}}`)
	if diff := cmp.Diff(hcn.Endpoint{Addresses: []netip.Addr{addr("10.1.0.9")}, Remote: true}, e, compareValues()); diff != "" || err != nil {
		t.Errorf("endpoint: error %v, (-want +got):\n%s", err, diff)
	}
	b, err := hcnschema.LoadBalancer(`{"FrontendVIPs":["any"],"Flags":7,"PortMappings":[{"Protocol":262,"InternalPort":70000,"Flags":33}],"HostComputeEndpoints":["` + id2 + `"]}`)
	wantB := hcn.LoadBalancer{FrontendVIPs: []netip.Addr{{}}, Flags: hcn.DSR | hcn.IPv6, PortMappings: []hcn.PortMapping{{}}, Endpoints: []string{id2}}
	if diff := cmp.Diff(wantB, b, compareValues()); diff != "" || err != nil {
		t.Errorf("load balancer: error %v, (-want +got):\n%s", err, diff)
	}
}

func TestQueries(t *testing.T) {
	for want, f := range map[string]hcnschema.Filter{
		`{"SchemaVersion":{"Major":2,"Minor":0},"Flags":0}`:                                                 {},
		`{"SchemaVersion":{"Major":2,"Minor":0},"Flags":0,"Filter":"{\"Name\":\"cbr0\"}"}`:                  {Name: "cbr0"},
		`{"SchemaVersion":{"Major":2,"Minor":0},"Flags":0,"Filter":"{\"VirtualNetwork\":\"` + id1 + `\"}"}`: {NetworkID: id1},
	} {
		if got := hcnschema.QueryText(f); got != want {
			t.Errorf("query for %+v: got %s, want %s", f, got, want)
		}
		if got, err := hcnschema.Query(want); got != f || err != nil {
			t.Errorf("filter of %s: got %+v, %v, want %+v", want, got, err, f)
		}
	}
	for _, text := range []string{"", "[]", `{"Filter":"x"}`} {
		if f, err := hcnschema.Query(text); err == nil {
			t.Errorf("query %q: got %+v, want an error", text, f)
		}
	}
}

func TestIDs(t *testing.T) {
	got, err := hcnschema.IDs(`["8F6F2A1E-0000-4000-8000-00000000000A","{8f6f2a1e-0000-4000-8000-00000000000b}"]`)
	if diff := cmp.Diff([]string{id1, id2}, got); diff != "" || err != nil {
		t.Errorf("error %v, (-want +got):\n%s", err, diff)
	}
	testenv.Same(t, "[]", hcnschema.IDsText(nil), "no IDs")
	if got, err := hcnschema.IDs(`{"Success":false}`); err == nil {
		t.Errorf("no list: got %v, want an error", got)
	}
}

func TestVersion(t *testing.T) {
	const text = `{"Success":true,"Output":{"Major":15,"Minor":5}}`
	v := hcn.Version{Major: 15, Minor: 5}
	if got, refusal, err := hcnschema.Version(text); got != v || refusal != "" || err != nil {
		t.Errorf("got %v, %q, %v, want %v", got, refusal, err, v)
	}
	if got := hcnschema.VersionText(v); got != text {
		t.Errorf("got %s, want %s", got, text)
	}
	for text, want := range map[string]string{
		`{"Success":false,"Error":"Access is denied.","Output":""}`: "Access is denied.",
		`{"Success":false}`: "no success",
	} {
		if _, refusal, err := hcnschema.Version(text); refusal != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", text, refusal, err, want)
		}
	}
	for _, text := range []string{"", `{"Success":true}`, `{"Success":true,"Output":"9.2"}`} {
		if v, _, err := hcnschema.Version(text); err == nil {
			t.Errorf("%s: got %v, want an error", text, v)
		}
	}
}

// A document that could be read is written so that it reads the same.
func FuzzObjects(f *testing.F) {
	for _, text := range []string{
		`{"ID":"{8F}","Name":"a","Type":"Overlay","Policies":[{"Type":"RemoteSubnetRoute","Settings":{"DestinationPrefix":"::/0","ProviderAddress":"::1"}}]}`,
		`{"HostComputeNetwork":"x","IpConfigurations":[{"IpAddress":"fe80::1%3"}],"Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"1.2.3.4"}}],"Flags":3}`,
		`{"HostComputeEndpoints":["A"],"SourceVIP":"::1","FrontendVIPs":["","1.2.3.4"],"PortMappings":[{"Protocol":6,"Flags":31}],"Flags":3}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		readsAgain(t, text, hcnschema.Network, hcnschema.NetworkText)
		readsAgain(t, text, hcnschema.Endpoint, hcnschema.EndpointText)
		readsAgain(t, text, hcnschema.LoadBalancer, hcnschema.LoadBalancerText)
		_, _ = hcnschema.Query(text)
		_, _ = hcnschema.IDs(text)
		_, _, _ = hcnschema.Version(text)
	})
}

func readsAgain[T any](t *testing.T, text string, read func(string) (T, error), write func(T) string) {
	t.Helper()
	first, err := read(text)
	if err != nil {
		return
	}
	again, err := read(write(first))
	if err != nil {
		t.Fatalf("%s, written as %s: %v", text, write(first), err)
	}
	if diff := cmp.Diff(first, again, compareValues()); diff != "" {
		t.Fatalf("%s, written as %s, reads differently (-first +again):\n%s", text, write(first), diff)
	}
}
