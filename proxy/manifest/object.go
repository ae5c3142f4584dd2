package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
func (k kind) String() string { return kinds()[k] }

func kinds() []string { return []string{"object", "Node", "Service", "EndpointSlice"} }

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
	// retained says that its file lacks it, but has an error, and had it before.
	retained bool
}

// problem returns an error of the object as a DocumentError.
func (o object) problem(err error) *DocumentError {
	return &DocumentError{File: o.file, Line: o.line, Item: o.item, Err: fmt.Errorf("%v: %w", o.key, err)}
}

// classify returns the kind of an object, and whether it is a list of this kind or, if that is
// otherKind, of any kinds. An unsupported version of a known kind is an error, and so is a kind
// that is almost a known one.
func classify(apiVersion, typ string) (k kind, isList bool, err error) {
	name, isList := strings.CutSuffix(typ, "List")
	known := kinds()
	k = kind(max(0, slices.Index(known, name)))
	want := "v1"
	if k == sliceKind {
		want = discoveryv1.SchemeGroupVersion.String()
	}
	group, _, hasGroup := strings.Cut(apiVersion, "/")
	switch {
	case typ == "":
		return otherKind, false, errors.New("no kind")
	case apiVersion == "":
		return otherKind, false, fmt.Errorf("%s without apiVersion", typ)
	case hasGroup && group != discoveryv1.GroupName:
		return otherKind, false, nil
	case k == otherKind && typ != "List":
		if like, ok := nearest.Name(name, known[1:]...); ok {
			err = fmt.Errorf("unknown kind %s: did you mean %s?", typ, like+strings.TrimPrefix(typ, name))
		}
		return otherKind, false, err
	case apiVersion != want:
		return otherKind, false, fmt.Errorf("%s of apiVersion %q, want %q", typ, apiVersion, want)
	}
	return k, isList, nil
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
