package endpoints

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// View is the node that endpoints are seen from. It decides which are local and
// which hints name this node or zone. An empty name matches nothing.
type View struct {
	// NodeName is the name of the node, Zone its topology zone.
	NodeName, Zone string
}

// rawHints is the text of the hints of one endpoint, kept to resolve them for
// another view: each hint is a letter for its kind, a name, and hintEnd. It is empty
// for an endpoint without hints.
type rawHints = string

const (
	nodeHint = 'n'
	zoneHint = 'z'
	// hintEnd occurs in no name of a node or a zone.
	hintEnd = "\x00"
)

// appendHints appends the raw hints to b.
func appendHints(b []byte, h *discoveryv1.EndpointHints) []byte {
	for i := range h.ForNodes {
		b = appendHint(b, nodeHint, h.ForNodes[i].Name)
	}
	for i := range h.ForZones {
		b = appendHint(b, zoneHint, h.ForZones[i].Name)
	}
	return b
}

func appendHint(b []byte, kind byte, name string) []byte {
	b = append(b, kind)
	// An impossible name is still a hint, for elsewhere.
	if !strings.Contains(name, hintEnd) {
		b = append(b, name...)
	}
	return append(b, hintEnd...)
}

// resolve fills in the fields that depend on the view.
func (v *View) resolve(e *Endpoint, raw rawHints) {
	e.Local = v.NodeName != "" && e.NodeName == v.NodeName
	e.NodeHint, e.ZoneHint = HintNone, HintNone
	for raw != "" {
		var hint string
		hint, raw, _ = strings.Cut(raw, hintEnd)
		if hint[0] == nodeHint {
			e.NodeHint = max(e.NodeHint, pointsAt(hint[1:], v.NodeName))
		} else {
			e.ZoneHint = max(e.ZoneHint, pointsAt(hint[1:], v.Zone))
		}
	}
}

func pointsAt(hint, here string) Hint {
	if hint != "" && hint == here {
		return HintHere
	}
	return HintElsewhere
}
