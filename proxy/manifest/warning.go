package manifest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/nearest"
)

// needsClusterIP reports whether a Service is only served at a ClusterIP.
func needsClusterIP(s *v1.Service) bool {
	return s.Spec.ClusterIP != v1.ClusterIPNone && s.Spec.Type != v1.ServiceTypeExternalName
}

// maxNamed is how many ports the warnings about an EndpointSlice name.
const maxNamed = 10

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

// withSuggestion adds the known field that an unknown one may mean, if a decoder has found an unknown one.
func withSuggestion(err error, value metav1.Object) error {
	path := fieldOf(err)
	steps := strings.Split(path, ".")
	at, last := reflect.TypeOf(value), len(steps)-1
	for _, step := range steps[:last] {
		name, _, _ := strings.Cut(step, "[")
		if at = fieldTypes(at)[name]; at == nil {
			return err
		}
	}
	known := fieldTypes(at)
	if known[steps[last]] != nil {
		return err // The field is there twice.
	}
	if name, ok := nearest.Name(steps[last], slices.Sorted(maps.Keys(known))...); ok {
		return fmt.Errorf("%w: did you mean %s?", err, name)
	}
	return err
}

// fieldTypes returns the types of the fields of a struct, or of the structs of a list, by their names in JSON.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	types := map[string]reflect.Type{}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			types[name] = f.Type
		} else {
			maps.Copy(types, fieldTypes(f.Type)) // embedded
		}
	}
	return types
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
	unknown := 0
	for i, p := range slice.Ports {
		if known[portID{name, *p.Name, *p.Protocol}] {
			continue
		}
		if unknown++; unknown <= maxNamed {
			errs = append(errs, fmt.Errorf("ports[%d]: the Service %v has no port %q/%s", i, name, *p.Name, *p.Protocol))
		}
	}
	if unknown > maxNamed {
		errs = append(errs, fmt.Errorf("ports: the Service %v does not have %d more of them", name, unknown-maxNamed))
	}
	return errs
}
