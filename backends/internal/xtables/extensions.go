package xtables

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// Extension is a match or a target of iptables. It needs a library of the programs and a
// module of the kernel, and either may be missing.
type Extension struct {
	Name string
	// Table is a table in which rules use it.
	Table Table
	// Rule uses this extension alone. It is empty for a table itself.
	Rule string
	// Module is the kernel module of the extension.
	Module string
	// IsFor reports whether a service port needs the extension; nil if all do.
	IsFor func(*proxy.ServicePort) bool
}

// RejectExtension is the target of [Reject].
func RejectExtension(f v1.IPFamily) Extension {
	e := Extension{Name: "REJECT", Table: Filter, Rule: Reject(f), Module: "ipt_REJECT"}
	if f == v1.IPv6Protocol {
		e.Module = "ip6t_REJECT"
	}
	return e
}

// remedy describes what is missing, and how to provide it.
func (e *Extension) remedy() string {
	if e.Rule == "" {
		return fmt.Sprintf("the table %s is missing: load the kernel module %s", e.Table, e.Module)
	}
	kind := "match"
	if e.Name == strings.ToUpper(e.Name) {
		kind = "target"
	}
	return fmt.Sprintf("the %s %s is missing: load the kernel module %s, and install all of the package iptables", kind, e.Name, e.Module)
}

// extensions returns the used tables, each followed by the extensions that rules have there.
func (n Names) extensions(f *Family) (all []Extension) {
	kind := "iptable_"
	if f.Family == v1.IPv6Protocol {
		kind = "ip6table_"
	}
	for _, t := range n.tables() {
		all = append(all, Extension{Name: t.String(), Table: t, Module: kind + t.String()})
		for _, e := range f.Extensions {
			if e.Table == t {
				all = append(all, e)
			}
		}
	}
	return all
}
