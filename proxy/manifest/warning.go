package manifest

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// needsClusterIP reports whether a Service is only served at a ClusterIP.
func needsClusterIP(s *v1.Service) bool {
	return s.Spec.ClusterIP != v1.ClusterIPNone && s.Spec.Type != v1.ServiceTypeExternalName
}

// portID is what a port of an EndpointSlice and the port of its Service have in common.
type portID struct {
	service  types.NamespacedName
	name     string
	protocol v1.Protocol
}

// check returns warnings about objects of all files that are read and have no effect. ClusterIPs may be
// missing if they are assigned.
func check(objects []object, assigns bool) (warnings []*DocumentError) {
	services, ports := map[types.NamespacedName]*v1.Service{}, map[portID]bool{}
	for _, o := range objects {
		if s, ok := o.value.(*v1.Service); ok {
			services[o.NamespacedName] = s
			for i := range s.Spec.Ports {
				ports[portID{o.NamespacedName, s.Spec.Ports[i].Name, s.Spec.Ports[i].Protocol}] = true
			}
		}
	}
	for _, o := range objects {
		var errs []error
		switch value := o.value.(type) {
		case *v1.Service:
			errs = checkService(value, assigns)
		case *discoveryv1.EndpointSlice:
			name := types.NamespacedName{Namespace: o.Namespace, Name: value.Labels[discoveryv1.LabelServiceName]}
			errs = checkSlice(value, name, services[name], ports)
		}
		for _, err := range errs {
			warnings = append(warnings, o.problem(err))
		}
	}
	return warnings
}

func checkService(s *v1.Service, assigns bool) (errs []error) {
	if !needsClusterIP(s) {
		return nil
	}
	if s.Spec.ClusterIP == "" && !assigns {
		errs = append(errs, errors.New("without spec.clusterIP it is not served: give it an unused address, for example clusterIP: 10.96.0.10"))
	}
	return errs
}

// lacking returns what an object lacks that it is of no use without, and the field around it.
func lacking(value metav1.Object) (field string, err error) {
	switch value := value.(type) {
	case *v1.Service:
		if needsClusterIP(value) && len(value.Spec.Ports) == 0 {
			return "spec", errors.New("without spec.ports it answers nowhere")
		}
	case *discoveryv1.EndpointSlice:
		if value.Labels[discoveryv1.LabelServiceName] == "" {
			return "metadata.labels", fmt.Errorf("without the label %s it is of no Service", discoveryv1.LabelServiceName)
		}
	}
	return "", nil
}

// checkSlice compares an EndpointSlice with its Service, which is nil if no file has it, and known ports.
func checkSlice(slice *discoveryv1.EndpointSlice, name types.NamespacedName, service *v1.Service, known map[portID]bool) (errs []error) {
	switch {
	case name.Name == "":
		return nil // lacking has found that
	case service == nil:
		return []error{fmt.Errorf("no file has its Service %v", name)}
	case !needsClusterIP(service) || len(service.Spec.Ports) == 0:
		return nil
	}
	for i, p := range slice.Ports {
		if !known[portID{name, *p.Name, *p.Protocol}] {
			errs = append(errs, fmt.Errorf("ports[%d]: the Service %v has no port %q/%s", i, name, *p.Name, *p.Protocol))
		}
	}
	return errs
}
