package manifest

import (
	"encoding/json"
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
	kjson "sigs.k8s.io/json"

	"github.com/vipkit/vipkit/internal/nearest"
)

// unmarshal reads an object of the API. It returns a warning for each field that the type
// does not have; the object is read without it.
func unmarshal(r raw, value metav1.Object) (warnings []*DocumentError, err error) {
	unknown, err := kjson.UnmarshalStrict(r.data, value, kjson.DisallowUnknownFields)
	for _, e := range unknown {
		field, ok := errors.AsType[kjson.FieldError](e)
		if !ok {
			return nil, e
		}
		reason := fmt.Errorf("unknown field %s%s", field.FieldPath(), suggestion(reflect.TypeOf(value), field.FieldPath()))
		warnings = append(warnings, r.warning(field.FieldPath(), reason))
	}
	return warnings, err
}

// warning returns a warning about a field of the object.
func (r raw) warning(path string, reason error) *DocumentError {
	return &DocumentError{Line: r.lineOf(path), Item: r.item, Err: reason}
}

// wrongType returns an error of reading an object, and for a value of a wrong type one with the line of
// the field.
func (r raw) wrongType(k kind, err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	err = fmt.Errorf("%v: %w", k, inWords(err))
	if !ok {
		return err
	}
	return r.warning(wrong.Field, err)
}

// inWords returns an error about a value of a wrong type without types of Go, and another one as it is.
func inWords(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok || wrong.Field == "" {
		return err
	}
	has, want := "a "+wrong.Value, "a string"
	switch number, isNumber := strings.CutPrefix(wrong.Value, "number "); {
	case isNumber:
		has = "the number " + number
	case wrong.Value == "array":
		has = "a list"
	case wrong.Value == "object":
		has = "a mapping"
	}
	switch wrong.Type.Kind() { //nolint:exhaustive // the API has no others
	case reflect.Int32, reflect.Int64:
		want = "a whole number"
		if strings.HasPrefix(has, "the number") {
			want = fmt.Sprintf("a whole number of %d bits", wrong.Type.Bits())
		}
	case reflect.Bool:
		want = "true or false"
	case reflect.Slice:
		want = "a list"
	case reflect.Map, reflect.Struct:
		want = "a mapping"
	}
	return fmt.Errorf("field %s has %s, want %s", wrong.Field, has, want)
}

// suggestion names the known field that an unknown one may mean.
func suggestion(t reflect.Type, path string) string {
	steps := strings.Split(path, ".")
	last := len(steps) - 1
	for _, step := range steps[:last] {
		name, _, _ := strings.Cut(step, "[")
		if t = fieldTypes(t)[name]; t == nil {
			return ""
		}
	}
	if name, ok := nearest.Name(steps[last], slices.Sorted(maps.Keys(fieldTypes(t)))...); ok {
		return fmt.Sprintf(": did you mean %s?", name)
	}
	return ""
}

// fieldTypes returns the types of the fields of a struct, by their names in JSON.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	types := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			maps.Copy(types, fieldTypes(f.Type)) // embedded
		} else {
			types[name] = f.Type
		}
	}
	return types
}

// check returns a warning for each field that an object lacks and is of no use without.
func check(r raw, value metav1.Object) (warnings []*DocumentError) {
	slice, ok := value.(*discoveryv1.EndpointSlice)
	if ok && slice.Labels[discoveryv1.LabelServiceName] == "" {
		warnings = append(warnings, r.warning("metadata.labels", fmt.Errorf(
			"EndpointSlice %s/%s has no label %s, and so is of no Service: it needs the name of one", slice.Namespace, slice.Name, discoveryv1.LabelServiceName)))
	}
	service, ok := value.(*v1.Service)
	if ok && needsClusterIP(service) && len(service.Spec.Ports) == 0 {
		warnings = append(warnings, r.warning("spec", fmt.Errorf("the Service %s/%s has no spec.ports, and so answers nowhere", service.Namespace, service.Name)))
	}
	return warnings
}

// needsClusterIP reports whether a Service is only served at a ClusterIP.
func needsClusterIP(s *v1.Service) bool {
	return s.Spec.ClusterIP != v1.ClusterIPNone && s.Spec.Type != v1.ServiceTypeExternalName
}

// crossCheck returns a warning for each EndpointSlice whose Service no file has, and for each port of one
// that no port of its Service has.
func crossCheck(objects []object) (warnings []*DocumentError) {
	c := crossChecker{services: map[types.NamespacedName]*v1.Service{}, ports: map[*v1.Service]map[portID]bool{}}
	for _, o := range objects {
		if s, ok := o.value.(*v1.Service); ok {
			c.services[o.NamespacedName] = s
		}
	}
	for _, o := range objects {
		slice, ok := o.value.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] == "" { // check warns of the latter.
			continue
		}
		for _, err := range c.check(slice) {
			warnings = append(warnings, o.problem(err))
		}
	}
	return warnings
}

// crossChecker compares EndpointSlices with the Services of all files.
type crossChecker struct {
	services map[types.NamespacedName]*v1.Service
	// ports are those of the Services that slices were compared with.
	ports map[*v1.Service]map[portID]bool
	// missing counts the slices whose Service no file has.
	missing int
}

// check returns the reasons for warnings about an EndpointSlice.
func (c *crossChecker) check(slice *discoveryv1.EndpointSlice) (errs []error) {
	name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	service := c.services[name]
	if service == nil {
		return []error{c.noService(name)}
	}
	if !needsClusterIP(service) || len(service.Spec.Ports) == 0 {
		return nil
	}
	known, wrong := c.portsOf(service), 0
	for i := range slice.Ports {
		id := portID{*slice.Ports[i].Name, *slice.Ports[i].Protocol}
		if known[id] {
			continue
		}
		if wrong++; wrong <= maxNamed {
			errs = append(errs, fmt.Errorf("ports[%d]: the Service %s/%s has no port %v, only %s", i, service.Namespace, service.Name, id, list(service.Spec.Ports)))
		}
	}
	if wrong > maxNamed {
		errs = append(errs, fmt.Errorf("ports: the Service %s/%s does not have %d more of them", service.Namespace, service.Name, wrong-maxNamed))
	}
	return errs
}

// portsOf returns the ports of a Service.
func (c *crossChecker) portsOf(s *v1.Service) map[portID]bool {
	known := c.ports[s]
	if known == nil {
		known = make(map[portID]bool, len(s.Spec.Ports))
		for i := range s.Spec.Ports {
			known[portID{s.Spec.Ports[i].Name, s.Spec.Ports[i].Protocol}] = true
		}
		c.ports[s] = known
	}
	return known
}

// maxNamed is how many ports the warnings about an EndpointSlice name, and for how many Services
// that no file has the warnings name a similar one.
const maxNamed = 10

// portID is what a port of an EndpointSlice and the port of the Service have in common.
type portID struct {
	name     string
	protocol v1.Protocol
}

func (p portID) String() string { return fmt.Sprintf("%q/%s", p.name, p.protocol) }

// list lists the ports of a Service, up to maxNamed.
func list(ports []v1.ServicePort) string {
	var names []string
	for i := range ports {
		if i == maxNamed {
			return fmt.Sprintf("%s and %d more", strings.Join(names, ", "), len(ports)-i)
		}
		names = append(names, portID{ports[i].Name, ports[i].Protocol}.String())
	}
	return strings.Join(names, ", ")
}

// noService returns the reason for a warning about a Service that no file has.
func (c *crossChecker) noService(name types.NamespacedName) error {
	missing := fmt.Errorf("no file has its Service %v", name)
	if c.missing++; c.missing > maxNamed {
		return missing
	}
	var beside []string
	for other := range c.services {
		if other.Namespace == name.Namespace {
			beside = append(beside, other.Name)
		}
	}
	slices.Sort(beside)
	if like, ok := nearest.Name(name.Name, beside...); ok {
		return fmt.Errorf("%w; did you mean %s?", missing, like)
	}
	return missing
}
