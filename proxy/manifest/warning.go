package manifest

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// isServed reports whether a Service is served at a ClusterIP, if it has one.
func isServed(s *v1.Service) bool {
	return s.Spec.ClusterIP != v1.ClusterIPNone && s.Spec.Type != v1.ServiceTypeExternalName
}

// check returns warnings about objects of all files that are read and have no effect.
func check(objects []object) (warnings []*DocumentError) {
	services := map[types.NamespacedName]*v1.Service{}
	for _, o := range objects {
		if s, ok := o.value.(*v1.Service); ok {
			services[o.NamespacedName] = s
		}
	}
	for _, o := range objects {
		warn := func(format string, values ...any) {
			warnings = append(warnings, o.problem(fmt.Errorf(format, values...)))
		}
		switch value := o.value.(type) {
		case *v1.Service:
			switch {
			case !isServed(value):
			case value.Spec.ClusterIP == "":
				warn("without spec.clusterIP it is not served: give it an unused address, for example clusterIP: 10.96.0.10")
			case len(value.Spec.Ports) == 0:
				warn("without spec.ports it answers nowhere")
			}
		case *discoveryv1.EndpointSlice:
			name := types.NamespacedName{Namespace: o.Namespace, Name: value.Labels[discoveryv1.LabelServiceName]}
			checkSlice(value, name, services[name], warn)
		}
	}
	return warnings
}

// checkSlice compares an EndpointSlice with its Service, which is nil if no file has it.
func checkSlice(slice *discoveryv1.EndpointSlice, name types.NamespacedName, service *v1.Service, warn func(string, ...any)) {
	switch {
	case name.Name == "":
		warn("without the label %s it is of no Service", discoveryv1.LabelServiceName)
	case service == nil:
		warn("no file has its Service %v", name)
	case isServed(service) && len(service.Spec.Ports) > 0:
		for i, p := range slice.Ports {
			isOf := func(port v1.ServicePort) bool { return port.Name == *p.Name && port.Protocol == *p.Protocol }
			if !slices.ContainsFunc(service.Spec.Ports, isOf) {
				warn("ports[%d]: the Service %v has no port %q/%s", i, name, *p.Name, *p.Protocol)
			}
		}
	}
}
