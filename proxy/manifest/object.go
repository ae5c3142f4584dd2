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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
)

// kind is what an object is, in the order in which objects are handed over: the
// node first, since what services mean depends on it.
type kind int

const (
	otherKind kind = iota
	nodeKind
	serviceKind
	sliceKind
	listKind
)

// String gives the name of the kind in the API.
func (k kind) String() string {
	switch k {
	case nodeKind:
		return "Node"
	case serviceKind:
		return "Service"
	case sliceKind:
		return "EndpointSlice"
	case listKind:
		return "List"
	case otherKind:
	}
	return "object"
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

// digest stands for content.
type digest [sha256.Size]byte

// apiObject is a *v1.Node, *v1.Service or *discoveryv1.EndpointSlice.
type apiObject interface {
	metav1.Object
	Marshal() ([]byte, error)
}

// object is an object of a file. It is not changed any more.
type object struct {
	key
	digest digest
	value  apiObject
	line   int // of the file where it begins
	item   int // position in its List, or noItem
	// changed is the second in which its file was changed. Files that are written together
	// have no order in that.
	changed int64
}

// typeOf reads apiVersion and kind of an object.
func typeOf(data []byte) (metav1.TypeMeta, error) {
	var t metav1.TypeMeta
	if len(data) == 0 || data[0] != '{' {
		return t, errors.New("not an object")
	}
	return t, json.Unmarshal(data, &t)
}

// classify says what an object of this type is, and refuses a version of a
// known kind that is not the one that is read.
func classify(t metav1.TypeMeta) (kind, error) {
	switch {
	case t.Kind == "":
		return otherKind, errors.New("no kind")
	case t.APIVersion == "":
		return otherKind, fmt.Errorf("%s without apiVersion", t.Kind)
	}
	group, version, ok := strings.Cut(t.APIVersion, "/")
	if !ok {
		group, version = "", group
	}
	k, want := knownKind(group, t.Kind)
	if k != otherKind && version != "v1" {
		return otherKind, fmt.Errorf("%s of apiVersion %q, want %q", t.Kind, t.APIVersion, want)
	}
	return k, nil
}

func knownKind(group, name string) (k kind, apiVersion string) {
	core, discovery := v1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion
	switch group {
	case core.Group:
		switch name {
		case "Service":
			return serviceKind, core.String()
		case "Node":
			return nodeKind, core.String()
		case "List", "ServiceList", "NodeList":
			return listKind, core.String()
		}
	case discovery.Group:
		switch name {
		case "EndpointSlice":
			return sliceKind, discovery.String()
		case "EndpointSliceList":
			return listKind, discovery.String()
		}
	}
	return otherKind, ""
}

// itemType says whether a type is a list that is read, and which type its items
// have that do not say it themselves.
func itemType(t metav1.TypeMeta) (metav1.TypeMeta, bool) {
	if k, err := classify(t); err != nil || k != listKind {
		return metav1.TypeMeta{}, false
	}
	if t.Kind == "List" {
		return metav1.TypeMeta{}, true
	}
	return metav1.TypeMeta{APIVersion: t.APIVersion, Kind: strings.TrimSuffix(t.Kind, "List")}, true
}

// decode reads an object of a kind that is not other or List, with the
// defaults of the API server as far as a file is not complete without them.
func decode(k kind, data []byte) (apiObject, error) {
	switch k {
	case serviceKind:
		s := new(v1.Service)
		err := json.Unmarshal(data, s)
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			p.Protocol = cmp.Or(p.Protocol, v1.ProtocolTCP)
		}
		return s, err
	case sliceKind:
		s := new(discoveryv1.EndpointSlice)
		err := json.Unmarshal(data, s)
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Protocol == nil {
				p.Protocol = new(v1.ProtocolTCP)
			}
			if p.Name == nil {
				p.Name = new("")
			}
		}
		return s, err
	case nodeKind:
		n := new(v1.Node)
		return n, json.Unmarshal(data, n)
	case otherKind, listKind:
	}
	return nil, fmt.Errorf("%v is not read here", k)
}

// newObject reads an object of a kind that is not other or List.
func newObject(k kind, r raw) (object, error) {
	value, err := decode(k, r.data)
	if err != nil {
		return object{}, fmt.Errorf("%v: %w", k, err)
	}
	if value.GetName() == "" {
		return object{}, fmt.Errorf("%v without metadata.name", k)
	}
	value.SetManagedFields(nil)
	switch {
	case k == nodeKind:
		value.SetNamespace("")
	case value.GetNamespace() == "":
		value.SetNamespace(metav1.NamespaceDefault)
	}
	o := object{
		key:   key{k, types.NamespacedName{Namespace: value.GetNamespace(), Name: value.GetName()}},
		value: value,
		line:  r.line,
		item:  r.item,
	}
	content, err := value.Marshal()
	if err != nil {
		return object{}, fmt.Errorf("%v: %w", o.key, err)
	}
	o.digest = sha256.Sum256(content)
	return o, nil
}
