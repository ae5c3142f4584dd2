package hcnschema

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// version is SchemaVersion, the same in all documents.
type version struct{ Major, Minor int }

type network struct {
	ID            string `json:",omitempty"`
	Name          string
	Type          string          `json:",omitempty"`
	Policies      []policy        `json:",omitempty"`
	Ipams         json.RawMessage `json:",omitempty"` // as []ipam
	SchemaVersion version
}

type ipam struct{ Subnets []subnet }

type subnet struct {
	IPAddressPrefix string `json:"IpAddressPrefix"`
}

type policy struct {
	Type     string
	Settings json.RawMessage
}

type remoteSubnet struct{ DestinationPrefix, ProviderAddress string }

type endpoint struct {
	ID                 string            `json:",omitempty"`
	Name               string            `json:",omitempty"`
	HostComputeNetwork string            `json:",omitempty"`
	Policies           []policy          `json:",omitempty"`
	IPConfigurations   []ipConfiguration `json:"IpConfigurations,omitempty"`
	MacAddress         string            `json:",omitempty"`
	Flags              uint32            `json:",omitempty"`
	SchemaVersion      version
}

type ipConfiguration struct {
	IPAddress string `json:"IpAddress"`
}

type provider struct{ ProviderAddress string }

type loadBalancer struct {
	ID                   string        `json:",omitempty"`
	HostComputeEndpoints []string      `json:",omitempty"`
	SourceVIP            string        `json:",omitempty"`
	FrontendVIPs         []string      `json:",omitempty"`
	PortMappings         []portMapping `json:",omitempty"`
	SchemaVersion        version
	Flags                hcn.LoadBalancerFlags `json:",omitempty"`
}

// portMapping has wider numbers than package hcn, so that a greater one does not make a document
// unreadable.
type portMapping struct {
	Protocol         uint32               `json:",omitempty"`
	InternalPort     uint32               `json:",omitempty"`
	ExternalPort     uint32               `json:",omitempty"`
	DistributionType hcn.Distribution     `json:",omitempty"`
	Flags            hcn.PortMappingFlags `json:",omitempty"`
}

// Names and flags of the documents.
const (
	remoteSubnetRoute = "RemoteSubnetRoute"
	providerAddress   = "ProviderAddress"
	defaultType       = "NAT" // HNS leaves it out
	remoteEndpoint    = 1

	knownFlags        = hcn.DSR | hcn.IPv6
	knownMappingFlags = hcn.LocalRoutedVIP | hcn.UseMux | hcn.PreserveDIP | hcn.VIPExternalIP
)

// Network reads a HostComputeNetwork.
func Network(text string) (hcn.Network, error) {
	var n network
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return hcn.Network{}, fmt.Errorf("HostComputeNetwork: %w", err)
	}
	result := hcn.Network{ID: ID(n.ID), Name: n.Name, Type: n.Type}
	if result.Type == "" {
		result.Type = defaultType
	}
	result.Subnets = subnets(n.Ipams)
	for _, p := range n.Policies {
		var s remoteSubnet
		if p.Type != remoteSubnetRoute || json.Unmarshal(p.Settings, &s) != nil {
			continue
		}
		prefix, err := netip.ParsePrefix(s.DestinationPrefix)
		to := address(s.ProviderAddress)
		if err == nil && to.IsValid() {
			result.RemoteSubnets = append(result.RemoteSubnets, hcn.RemoteSubnet{Prefix: prefix.Masked(), ProviderAddress: to})
		}
	}
	return result, nil
}

// subnets reads the ranges of addresses in Ipams.
func subnets(doc json.RawMessage) (all []netip.Prefix) {
	var ipams []ipam
	if json.Unmarshal(doc, &ipams) != nil {
		return nil
	}
	for _, i := range ipams {
		for _, s := range i.Subnets {
			if prefix, err := netip.ParsePrefix(s.IPAddressPrefix); err == nil {
				all = append(all, prefix.Masked())
			}
		}
	}
	return all
}

// NetworkText writes a HostComputeNetwork.
func NetworkText(n hcn.Network) string {
	doc := network{ID: n.ID, Name: n.Name, Type: n.Type, SchemaVersion: schemaVersion()}
	if len(n.Subnets) > 0 {
		var i ipam
		for _, s := range n.Subnets {
			i.Subnets = append(i.Subnets, subnet{s.String()})
		}
		doc.Ipams = raw([]ipam{i})
	}
	for _, s := range n.RemoteSubnets {
		doc.Policies = append(doc.Policies, policy{
			remoteSubnetRoute, raw(remoteSubnet{s.Prefix.String(), s.ProviderAddress.String()}),
		})
	}
	return text(doc)
}

// Endpoint reads a HostComputeEndpoint.
func Endpoint(text string) (hcn.Endpoint, error) {
	var e endpoint
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		return hcn.Endpoint{}, fmt.Errorf("HostComputeEndpoint: %w", err)
	}
	result := hcn.Endpoint{
		ID: ID(e.ID), Name: e.Name, NetworkID: ID(e.HostComputeNetwork),
		MAC: e.MacAddress, Remote: e.Flags&remoteEndpoint != 0,
	}
	for _, c := range e.IPConfigurations {
		if a := address(c.IPAddress); a.IsValid() {
			result.Addresses = append(result.Addresses, a)
		}
	}
	for _, p := range e.Policies {
		var s provider
		if p.Type == providerAddress && json.Unmarshal(p.Settings, &s) == nil {
			result.ProviderAddress = address(s.ProviderAddress)
		}
	}
	return result, nil
}

// EndpointText writes a HostComputeEndpoint.
func EndpointText(e hcn.Endpoint) string {
	doc := endpoint{ID: e.ID, Name: e.Name, HostComputeNetwork: e.NetworkID, MacAddress: e.MAC, SchemaVersion: schemaVersion()}
	for _, a := range e.Addresses {
		doc.IPConfigurations = append(doc.IPConfigurations, ipConfiguration{a.String()})
	}
	if e.ProviderAddress.IsValid() {
		doc.Policies = []policy{{providerAddress, raw(provider{e.ProviderAddress.String()})}}
	}
	if e.Remote {
		doc.Flags = remoteEndpoint
	}
	return text(doc)
}

// LoadBalancer reads a HostComputeLoadBalancer.
func LoadBalancer(text string) (hcn.LoadBalancer, error) {
	var b loadBalancer
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return hcn.LoadBalancer{}, fmt.Errorf("HostComputeLoadBalancer: %w", err)
	}
	result := hcn.LoadBalancer{ID: ID(b.ID), SourceVIP: address(b.SourceVIP), Flags: b.Flags & knownFlags}
	for _, id := range b.HostComputeEndpoints {
		result.Endpoints = append(result.Endpoints, ID(id))
	}
	for _, a := range b.FrontendVIPs {
		result.FrontendVIPs = append(result.FrontendVIPs, address(a))
	}
	for _, p := range b.PortMappings {
		result.PortMappings = append(result.PortMappings, hcn.PortMapping{
			Protocol: uint8(within(p.Protocol, 1<<8)), InternalPort: uint16(within(p.InternalPort, 1<<16)),
			ExternalPort: uint16(within(p.ExternalPort, 1<<16)), Distribution: p.DistributionType, Flags: p.Flags & knownMappingFlags,
		})
	}
	return result, nil
}

// LoadBalancerText writes a HostComputeLoadBalancer.
func LoadBalancerText(b hcn.LoadBalancer) string {
	doc := loadBalancer{ID: b.ID, HostComputeEndpoints: b.Endpoints, SchemaVersion: schemaVersion(), Flags: b.Flags}
	if b.SourceVIP.IsValid() {
		doc.SourceVIP = b.SourceVIP.String()
	}
	for _, a := range b.FrontendVIPs {
		doc.FrontendVIPs = append(doc.FrontendVIPs, a.String())
	}
	for _, p := range b.PortMappings {
		doc.PortMappings = append(doc.PortMappings, portMapping{
			uint32(p.Protocol), uint32(p.InternalPort), uint32(p.ExternalPort), p.Distribution, p.Flags,
		})
	}
	return text(doc)
}

// ID returns a GUID in the form of package hcn: in lower case, without braces.
func ID(s string) string {
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}"))
}

// address returns the zero Addr for a text that is no address.
func address(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}

// within returns 0 for a number that is not below a limit.
func within(n, limit uint32) uint32 {
	if n >= limit {
		return 0
	}
	return n
}

func schemaVersion() version { return version{Major: 2} }

// text returns the JSON form of a document of this package, all of which have one.
func text(doc any) string { return string(raw(doc)) }

func raw(doc any) json.RawMessage {
	b, err := json.Marshal(doc)
	if err != nil {
		return nil
	}
	return b
}
