package main

import (
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

//go:embed manifest.yaml
var manifestYAML string

// manifest is what manifest.yaml says. A real proxy gets such objects from the
// API server.
type manifest struct {
	service *v1.Service
	slice   *discoveryv1.EndpointSlice
	vip     netip.AddrPort // where the Service answers
	pods    []pod          // those of the slice, in its order
}

type pod struct {
	name string
	addr netip.AddrPort
}

func readManifest(text string) (*manifest, error) {
	service, slice, found := strings.Cut(text, "\n---\n")
	if !found {
		return nil, errors.New("manifest.yaml: a Service and an EndpointSlice are wanted, with a line --- between them")
	}
	m := &manifest{service: new(v1.Service), slice: new(discoveryv1.EndpointSlice)}
	if err := yaml.UnmarshalStrict([]byte(service), m.service); err != nil {
		return nil, fmt.Errorf("manifest.yaml: Service: %w", err)
	}
	if err := yaml.UnmarshalStrict([]byte(slice), m.slice); err != nil {
		return nil, fmt.Errorf("manifest.yaml: EndpointSlice: %w", err)
	}
	if err := m.understand(); err != nil {
		return nil, fmt.Errorf("manifest.yaml: %w", err)
	}
	return m, nil
}

// understand finds in the objects what the cluster is built from.
func (m *manifest) understand() error {
	if len(m.service.Spec.Ports) != 1 || len(m.slice.Ports) != 1 || m.slice.Ports[0].Port == nil {
		return errors.New("the Service and the EndpointSlice must have one port each")
	}
	pods := netip.MustParsePrefix(podRange)
	ip, err := netip.ParseAddr(m.service.Spec.ClusterIP)
	if err != nil {
		return fmt.Errorf("spec.clusterIP: %w", err)
	}
	m.vip = netip.AddrPortFrom(ip, uint16(m.service.Spec.Ports[0].Port))
	for _, e := range m.slice.Endpoints {
		if e.TargetRef == nil || len(e.Addresses) != 1 {
			return errors.New("each endpoint must have one address and a targetRef, which names the pod")
		}
		ip, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			return fmt.Errorf("endpoint %s: %w", e.TargetRef.Name, err)
		}
		if !pods.Contains(ip) {
			return fmt.Errorf("endpoint %s: %v is not an address of a pod; those are in %v", e.TargetRef.Name, ip, pods)
		}
		m.pods = append(m.pods, pod{e.TargetRef.Name, netip.AddrPortFrom(ip, uint16(*m.slice.Ports[0].Port))})
	}
	if len(m.pods) < 2 {
		return errors.New("at least two endpoints are wanted, so that there is something to choose from")
	}
	return nil
}

// last is the pod that things happen to.
func (m *manifest) last() pod { return m.pods[len(m.pods)-1] }

// others are all pods but the last.
func (m *manifest) others() []pod { return m.pods[:len(m.pods)-1] }
