package proxy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Problem is something in an API object that cannot be honoured. The rest of
// the object, and all other objects, are honoured. Backends also report a setting of
// the node itself that breaks Services as a Problem.
type Problem struct {
	// Kind is the kind of the object: Service, EndpointSlice or Node.
	Kind string
	types.NamespacedName
	// Field is the path of the field within the object, or the name of the setting.
	Field string
	// Err says what is wrong with it.
	Err error
}

// Error returns kind, namespace/name, field and reason on one line.
func (p *Problem) Error() string {
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + p.Name
	}
	return fmt.Sprintf("%s %s: %s: %v", p.Kind, name, p.Field, p.Err)
}

// Unwrap returns the reason.
func (p *Problem) Unwrap() error { return p.Err }

func sortProblems(list []*Problem) { slices.SortFunc(list, (*Problem).compare) }

func (p *Problem) compare(o *Problem) int {
	return cmp.Or(
		strings.Compare(p.Kind, o.Kind),
		strings.Compare(p.Namespace, o.Namespace),
		strings.Compare(p.Name, o.Name),
		strings.Compare(p.Field, o.Field),
		strings.Compare(p.Err.Error(), o.Err.Error()),
	)
}
