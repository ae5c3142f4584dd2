package manifest

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

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
	// digest is of the text as JSON; the zero value if there were warnings about it.
	digest digest
}

type digest [sha256.Size]byte

// digestOf returns the digest of an object's text.
func digestOf(k kind, r raw) digest {
	h := sha256.New()
	h.Write([]byte{byte(k)}) // never fails
	h.Write(r.data)
	return digest(h.Sum(nil))
}

var errNoObject = errors.New("not an object")

// typeOf reads apiVersion and kind of an object.
func typeOf(data []byte) (metav1.TypeMeta, error) {
	var t metav1.TypeMeta
	if len(data) == 0 || data[0] != '{' {
		return t, errNoObject
	}
	return t, inWords(json.Unmarshal(data, &t))
}

// classify returns the kind of a type, and whether it is a list of this kind or, if that is
// otherKind, of any kinds. An unsupported version of a known kind is an error.
func classify(t metav1.TypeMeta) (k kind, isList bool, err error) {
	switch {
	case t.Kind == "":
		return otherKind, false, errors.New("no kind")
	case t.APIVersion == "":
		return otherKind, false, fmt.Errorf("%s without apiVersion", t.Kind)
	}
	want := v1.SchemeGroupVersion
	name, isList := strings.CutSuffix(t.Kind, "List")
	switch name {
	case "Node":
		k = nodeKind
	case "Service":
		k = serviceKind
	case "EndpointSlice":
		k, want = sliceKind, discoveryv1.SchemeGroupVersion
	case "":
	default:
		return otherKind, false, misspelled(t, name)
	}
	got, err := schema.ParseGroupVersion(t.APIVersion)
	switch {
	case err != nil:
		return otherKind, false, fmt.Errorf("%s: %w", t.Kind, err)
	case got.Group != want.Group && k != otherKind && isKnownGroup(got.Group):
		return otherKind, false, fmt.Errorf("%s of apiVersion %q, want %q", t.Kind, got, want)
	case got.Group != want.Group:
		return otherKind, false, nil
	case got != want:
		return otherKind, false, fmt.Errorf("%s of apiVersion %q, want %q", t.Kind, t.APIVersion, want)
	}
	return k, isList, nil
}

// misspelled returns an error for a kind, without List at its end, that is almost a known
// one and whose apiVersion has the group of a known one.
func misspelled(t metav1.TypeMeta, name string) error {
	if group, _, _ := strings.Cut(t.APIVersion, "/"); t.APIVersion != "v1" && !isKnownGroup(group) {
		return nil
	}
	if known, ok := nearest.Name(name, nodeKind.String(), serviceKind.String(), sliceKind.String()); ok {
		return fmt.Errorf("unknown kind %s: did you mean %s?", t.Kind, known+strings.TrimPrefix(t.Kind, name))
	}
	return nil
}

// isKnownGroup reports whether a group of the API has a known kind.
func isKnownGroup(group string) bool {
	return group == v1.GroupName || group == discoveryv1.GroupName
}

// newObject reads an object of a known kind, with those defaults of the API server that
// files need, and returns warnings about it.
func newObject(k kind, r raw) (object, []*DocumentError, error) {
	var value metav1.Object
	switch k {
	case nodeKind:
		value = new(v1.Node)
	case serviceKind:
		value = new(v1.Service)
	case sliceKind:
		value = new(discoveryv1.EndpointSlice)
	case otherKind:
		return object{}, nil, fmt.Errorf("kind %v is not supported", k)
	}
	warnings, err := unmarshal(r, value)
	if err != nil {
		return object{}, nil, r.wrongType(k, err)
	}
	if value.GetName() == "" {
		return object{}, nil, fmt.Errorf("%v without metadata.name", k)
	}
	setDefaults(value)
	if len(warnings) == 0 { // What is missing may have a wrong name.
		warnings = check(r, value)
	}
	name := types.NamespacedName{Namespace: value.GetNamespace(), Name: value.GetName()}
	return object{key: key{k, name}, value: value, line: r.line, item: r.item}, warnings, nil
}

func setDefaults(value metav1.Object) {
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
		// The decoder leaves room for more.
		o.Endpoints = exactly(o.Endpoints)
		for i := range o.Endpoints {
			o.Endpoints[i].Addresses = exactly(o.Endpoints[i].Addresses)
		}
	}
}

// exactly returns a copy of a list without room for more, or the list if it has none.
func exactly[T any](list []T) []T {
	if len(list) == cap(list) {
		return list
	}
	return append(make([]T, 0, len(list)), list...)
}
