package hcnschema

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// query is HostComputeQuery. Its filter is a JSON document within a string.
type query struct {
	SchemaVersion version
	Flags         uint32
	Filter        string `json:",omitempty"`
}

// Filter says which objects a query lists. The zero Filter is all.
type Filter struct {
	// Name is the name of a network.
	Name string `json:",omitempty"`
	// NetworkID is the ID of the network of endpoints.
	NetworkID string `json:"VirtualNetwork,omitempty"`
}

// QueryText writes a HostComputeQuery.
func QueryText(f Filter) string {
	q := query{SchemaVersion: schemaVersion()}
	if f != (Filter{}) {
		q.Filter = text(f)
	}
	return text(q)
}

// Query reads the filter of a HostComputeQuery.
func Query(text string) (f Filter, err error) {
	var q query
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		return f, fmt.Errorf("HostComputeQuery: %w", err)
	}
	if q.Filter == "" {
		return f, nil
	}
	if err := json.Unmarshal([]byte(q.Filter), &f); err != nil {
		return f, fmt.Errorf("filter of HostComputeQuery: %w", err)
	}
	return f, nil
}

// IDs reads the result of a function that enumerates objects: a list of GUIDs.
func IDs(text string) ([]string, error) {
	var ids []string
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return nil, fmt.Errorf("list of objects: %w", err)
	}
	if ids == nil {
		return nil, fmt.Errorf("list of objects: got %q, which is none", text)
	}
	for i, id := range ids {
		ids[i] = ID(id)
	}
	return ids, nil
}

// IDOf reads the ID of an object of any kind.
func IDOf(text string) (string, error) {
	var object struct{ ID string }
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return "", fmt.Errorf("ID of an object: %w", err)
	}
	if object.ID == "" {
		return "", fmt.Errorf("object without an ID: %s", text)
	}
	return ID(object.ID), nil
}

// IDsText writes a list of GUIDs.
func IDsText(ids []string) string {
	if ids == nil {
		ids = []string{}
	}
	return text(ids)
}

// answer is what HNSCall returns, whatever it is called for.
type answer struct {
	Success bool
	Error   string          `json:",omitempty"`
	Output  json.RawMessage `json:",omitempty"`
}

// Version reads the answer to HNSCall for the version. refusal is the error that HNS gave in it;
// empty if it gave none.
func Version(text string) (v hcn.Version, refusal string, err error) {
	var a answer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return v, "", fmt.Errorf("answer of HNSCall: %w", err)
	}
	if !a.Success || a.Error != "" {
		return v, cmp.Or(a.Error, "no success"), nil
	}
	if err := json.Unmarshal(a.Output, &v); err != nil {
		return v, "", fmt.Errorf("version in the answer of HNSCall: %w", err)
	}
	return v, "", nil
}

// VersionText writes the answer to HNSCall for the version.
func VersionText(v hcn.Version) string { return text(answer{Success: true, Output: raw(v)}) }
