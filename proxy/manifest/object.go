package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/vipkit/vipkit/internal/nearest"
)

// kind is the kind of an object, in the order in which objects are handed over: the
// node first, since services are resolved for it.
type kind int

const (
	otherKind kind = iota
	nodeKind
	serviceKind
	sliceKind
)

// empty returns an object of a known kind.
func (k kind) empty() metav1.Object {
	switch k {
	case nodeKind:
		return new(v1.Node)
	case serviceKind:
		return new(v1.Service)
	default:
		return new(discoveryv1.EndpointSlice)
	}
}

// String returns the name of the kind in the API.
func (k kind) String() string {
	return [...]string{"object", "Node", "Service", "EndpointSlice"}[k]
}

// key identifies an object.
type key struct {
	kind kind
	types.NamespacedName
}

func (k key) compare(o key) int {
	return cmp.Or(
		cmp.Compare(k.kind, o.kind),
		strings.Compare(k.Namespace, o.Namespace),
		strings.Compare(k.Name, o.Name),
	)
}

func (k key) String() string {
	if k.kind == nodeKind {
		return "Node " + k.Name
	}
	return fmt.Sprintf("%v %v", k.kind, k.NamespacedName)
}

// object is an object of a file. It never changes.
type object struct {
	key
	value metav1.Object // a Node, Service or EndpointSlice
	file  string        // its path
	line  int           // of the file where it begins
	item  int           // position in its List, or noItem
	// changed is the second in which its file was changed; files that are written
	// together are equal.
	changed int64
	// kept says that its file lacks it, but has an error, and had it before.
	kept bool
}

// classify returns the kind of an object, and whether it is a list of this kind or, if that is
// otherKind, of any kinds. An unsupported version of a known kind is an error, and so is a kind
// that is almost a known one.
func classify(apiVersion, typ string) (k kind, isList bool, err error) {
	name, isList := strings.CutSuffix(typ, "List")
	known, want := true, "v1"
	switch name {
	case "Node":
		k = nodeKind
	case "Service":
		k = serviceKind
	case "EndpointSlice":
		k, want = sliceKind, discoveryv1.SchemeGroupVersion.String()
	default:
		known = typ == "List"
	}
	group, _, hasGroup := strings.Cut(apiVersion, "/")
	switch {
	case typ == "":
		return otherKind, false, errors.New("no kind")
	case apiVersion == "":
		return otherKind, false, fmt.Errorf("%s without apiVersion", typ)
	case hasGroup && group != discoveryv1.GroupName:
		return otherKind, false, nil
	case known && apiVersion != want:
		return otherKind, false, fmt.Errorf("%s of apiVersion %q, want %q", typ, apiVersion, want)
	case known:
		return k, isList, nil
	}
	if like, ok := nearest.Name(name, "Node", "Service", "EndpointSlice"); ok {
		return otherKind, false, fmt.Errorf("unknown kind %s: did you mean %s?", typ, like+strings.TrimPrefix(typ, name))
	}
	return otherKind, false, nil
}

// withDefaults returns an object with those defaults of the API server that files need.
func withDefaults(value metav1.Object) metav1.Object {
	value.SetManagedFields(nil)
	value.SetNamespace(cmp.Or(value.GetNamespace(), metav1.NamespaceDefault))
	switch o := value.(type) {
	case *v1.Node:
		o.Namespace = ""
	case *v1.Service:
		for i := range o.Spec.Ports {
			p := &o.Spec.Ports[i]
			p.Protocol = cmp.Or(p.Protocol, v1.ProtocolTCP)
		}
	case *discoveryv1.EndpointSlice:
		for i := range o.Ports {
			p := &o.Ports[i]
			p.Protocol = cmp.Or(p.Protocol, new(v1.ProtocolTCP))
			p.Name = cmp.Or(p.Name, new(""))
		}
		return o.DeepCopy() // The decoder leaves room for more endpoints.
	}
	return value
}

// fieldOf returns the path of the field of a decoder's error, or the empty one.
func fieldOf(err error) string {
	if strict, ok := errors.AsType[kjson.FieldError](err); ok {
		return strict.FieldPath()
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wrong.Field
	}
	return ""
}

// inWords returns an error about a value of a wrong type without types of Go, and another one as it is.
func inWords(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok || wrong.Field == "" {
		return err
	}
	want := wrong.Type.Kind().String()
	switch wrong.Type.Kind() { //nolint:exhaustive // the others have the names of JSON
	case reflect.Int32, reflect.Int64:
		want = fmt.Sprintf("a whole number of %d bits", wrong.Type.Bits())
	case reflect.Bool:
		want = "true or false" // a user of YAML 1.1 may have written yes
	case reflect.Slice:
		want = "array"
	case reflect.Map, reflect.Struct:
		want = "object"
	}
	return fmt.Errorf("field %s: got %s, want %s", wrong.Field, wrong.Value, want)
}
