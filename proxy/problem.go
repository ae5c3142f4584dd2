package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
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
	// Reason is a code for programs.
	Reason Reason
	// Err says what is wrong with it.
	Err error
}

// Reason is the code of what is wrong. Its values stay as they are, while the texts of errors may change.
type Reason string

// The reasons.
const (
	// InvalidValue: the field has a value that cannot be used. It is ignored, or read as the nearest
	// value.
	InvalidValue Reason = "InvalidValue"
	// TooMany: there are more entries than the proxy serves. The others are ignored.
	TooMany Reason = "TooMany"
	// AddressConflict: another Service has the address and port.
	AddressConflict Reason = "AddressConflict"
	// NodeIncomplete: the Node object is gone, or lacks an address that Services need.
	NodeIncomplete Reason = "NodeIncomplete"
	// NodeSetting: a setting of the node breaks Services.
	NodeSetting Reason = "NodeSetting"
	// ServedWithLimits: the backend serves the Service, but not quite as it requests.
	ServedWithLimits Reason = "ServedWithLimits"
	// NotProgrammed: the backend could not program the service port.
	NotProgrammed Reason = "NotProgrammed"
)

// Error returns kind, namespace/name, field and the text of Err on one line.
func (p *Problem) Error() string {
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + p.Name
	}
	return fmt.Sprintf("%s %s: %s: %v", p.Kind, name, p.Field, p.cause())
}

// problemJSON is the form of a Problem in JSON.
type problemJSON struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Field     string `json:"field"`
	Reason    Reason `json:"reason"`
	Message   string `json:"message"`
}

// MarshalJSON returns kind, namespace, name, field and reason, and the text of Err as message.
func (p *Problem) MarshalJSON() ([]byte, error) {
	return json.Marshal(problemJSON{p.Kind, p.Namespace, p.Name, p.Field, p.Reason, p.cause().Error()})
}

// UnmarshalJSON reads what MarshalJSON returns. Err gets the text, and wraps nothing.
func (p *Problem) UnmarshalJSON(text []byte) error {
	var j problemJSON
	err := json.Unmarshal(text, &j)
	*p = Problem{Kind: j.Kind, NamespacedName: types.NamespacedName{Namespace: j.Namespace, Name: j.Name}, Field: j.Field, Reason: j.Reason, Err: errors.New(j.Message)}
	return err
}

// MarshalLog returns what Error returns. Without it, MarshalLog of the embedded name would hide the problem.
func (p *Problem) MarshalLog() any { return p.Error() }

// cause returns Err, which a backend may have left out.
func (p *Problem) cause() error { return cmp.Or(p.Err, errors.New("no message")) }

// place returns where the problem is, as keys and values of the log, and what is wrong.
func (p *Problem) place() (place []any, err error) {
	return []any{"kind", p.Kind, "object", strings.TrimPrefix(p.NamespacedName.String(), "/"), "field", p.Field, "reason", p.Reason}, p.cause()
}

// Unwrap returns Err.
func (p *Problem) Unwrap() error { return p.Err }

func sortProblems(list []*Problem) { slices.SortFunc(list, (*Problem).compare) }

func (p *Problem) compare(o *Problem) int {
	return cmp.Or(
		strings.Compare(p.Kind, o.Kind),
		strings.Compare(p.Namespace, o.Namespace),
		strings.Compare(p.Name, o.Name),
		strings.Compare(p.Field, o.Field),
		cmp.Compare(p.Reason, o.Reason),
		strings.Compare(p.cause().Error(), o.cause().Error()),
	)
}
