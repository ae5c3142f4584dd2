package endpoints

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ServicePortName identifies one port of one Service in one IP family: the fields in which an
// EndpointSlice port and a Service port must be equal. It is a comparable value. Dual stack is
// data: a dual-stack Service port has two names.
type ServicePortName struct {
	types.NamespacedName
	// Port is the name of the port in the Service; empty for a Service with
	// a single unnamed port.
	Port string
	// Protocol is TCP, UDP or SCTP.
	Protocol v1.Protocol
	// Family is the family of the ClusterIP and of the endpoints.
	Family v1.IPFamily
}

// String returns namespace/name:port/PROTOCOL/Family; the colon part is missing
// if the port has no name.
func (n ServicePortName) String() string {
	var b strings.Builder
	b.WriteString(n.Namespace)
	b.WriteByte('/')
	b.WriteString(n.Name)
	if n.Port != "" {
		b.WriteByte(':')
		b.WriteString(n.Port)
	}
	b.WriteByte('/')
	b.WriteString(string(n.Protocol))
	b.WriteByte('/')
	b.WriteString(string(n.Family))
	return b.String()
}

// Compare orders names by namespace, name, port, protocol and family.
func (n ServicePortName) Compare(o ServicePortName) int {
	// Most names differ in the first two parts: cmp.Or would compare the others, too.
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	if c := strings.Compare(n.Name, o.Name); c != 0 {
		return c
	}
	if c := strings.Compare(n.Port, o.Port); c != 0 {
		return c
	}
	if c := strings.Compare(string(n.Protocol), string(o.Protocol)); c != 0 {
		return c
	}
	return strings.Compare(string(n.Family), string(o.Family))
}
