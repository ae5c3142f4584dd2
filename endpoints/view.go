package endpoints

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// View says from where endpoints are looked at. It decides which are local and
// which hints mean this node. An empty name matches nothing.
type View struct {
	// NodeName is the name of the node, Zone its topology zone.
	NodeName, Zone string
}

// rawHints is the text of the hints of one endpoint, as long as they are needed
// to resolve them for another view: a list of names that end in hintEnd, each
// after a letter for its kind. Empty for an endpoint without hints.
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
	// What cannot be the name of anything still is a hint, to nowhere.
	if !strings.Contains(name, hintEnd) {
		b = append(b, name...)
	}
	return append(b, hintEnd...)
}

// look fills in what depends on the view.
func (v *View) look(e *Endpoint, raw rawHints) {
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
