package differential

import (
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	kube "k8s.io/kubernetes/pkg/proxy"
)

// families returns both families, in the order in which a Service is read.
func families() []v1.IPFamily { return []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} }

// kubeProxy is the model of kube-proxy, called like its informers do.
type kubeProxy struct {
	*decisions
	perFamily map[v1.IPFamily]*kubeFamily
	topology  map[string]string
}

type kubeFamily struct {
	serviceChanges  *kube.ServiceChangeTracker
	endpointChanges *kube.EndpointsChangeTracker
	services        kube.ServicePortMap
	endpoints       kube.EndpointsMap
}

func newKubeProxy(d *decisions) *kubeProxy {
	k := &kubeProxy{decisions: d, perFamily: map[v1.IPFamily]*kubeFamily{}}
	for _, f := range families() {
		k.perFamily[f] = &kubeFamily{
			serviceChanges:  kube.NewServiceChangeTracker(f, nil, nil),
			endpointChanges: kube.NewEndpointsChangeTracker(f, nodeName, nil, nil),
			services:        kube.ServicePortMap{},
			endpoints:       kube.EndpointsMap{},
		}
	}
	return k
}

func (k *kubeProxy) service(old, now *v1.Service) {
	old, now = k.selected(old), k.selected(now)
	for _, f := range families() {
		k.perFamily[f].serviceChanges.Update(old, now)
	}
}

// selected returns a Service as kube-proxy gets it: kube-proxy watches only Services without
// the label of another proxy. It sees a new label as a deletion.
func (k *kubeProxy) selected(s *v1.Service) *v1.Service {
	if s == nil {
		return nil
	}
	if _, named := s.Labels["service.kubernetes.io/service-proxy-name"]; named {
		return nil
	}
	return k.usablePorts(k.serviceDefaults(s))
}

func (k *kubeProxy) slice(old, now *discoveryv1.EndpointSlice) {
	for _, f := range families() {
		changes := k.perFamily[f].endpointChanges
		if now == nil || k.hasMoved(old, now) {
			changes.EndpointSliceUpdate(k.sliceDefaults(old), true)
		}
		if now != nil {
			changes.EndpointSliceUpdate(k.sliceDefaults(now), false)
		}
	}
}

// nodeChanged reads a Node like kube-proxy: the label of the zone, if it has one. A deletion
// changes nothing. kube-proxy watches only its own Node.
func (k *kubeProxy) nodeChanged(now *v1.Node) {
	if now == nil || now.Name != nodeName {
		return
	}
	k.topology = map[string]string{}
	if zone, ok := now.Labels[v1.LabelTopologyZone]; ok {
		k.topology[v1.LabelTopologyZone] = zone
	}
}

// sync applies all changes, as the proxiers do before they write rules.
func (k *kubeProxy) sync() {
	for _, f := range families() {
		x := k.perFamily[f]
		x.services.Update(x.serviceChanges)
		x.endpoints.Update(x.endpointChanges)
	}
}
