package endpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lettered are the conditions that the tests write as one letter.
type lettered struct {
	letter                      string
	ready, serving, terminating bool
}

func conditionLetters() []lettered {
	return []lettered{
		{"R", true, true, false},   // ready
		{"U", false, false, false}, // not ready
		{"T", false, true, true},   // serving and terminating
		{"X", false, false, true},  // terminating, no longer serving
		{"P", true, true, true},    // ready although terminating
		{"N", true, false, false},  // ready without serving
		{"S", false, true, false},  // serving, not ready
		{"Q", true, false, true},   // as N, and terminating
	}
}

func letterOf(e *Endpoint) string {
	for _, l := range conditionLetters() {
		if l.ready == e.Ready && l.serving == e.Serving && l.terminating == e.Terminating {
			return l.letter
		}
	}
	return "?"
}

// text formats endpoints: address, letter, and further fields that are set.
func text(list []*Endpoint) []string {
	var out []string
	for _, e := range list {
		words := []string{e.Addr.String(), letterOf(e)}
		if e.NodeName != "" {
			words = append(words, "@"+e.NodeName)
		}
		if e.Local {
			words = append(words, "local")
		}
		words = append(words, hintWords("zone", e.ZoneHint)...)
		words = append(words, hintWords("node", e.NodeHint)...)
		out = append(out, strings.Join(words, " "))
	}
	return out
}

func hintWords(kind string, h Hint) []string {
	switch h {
	case HintHere:
		return []string{kind + "+"}
	case HintElsewhere:
		return []string{kind + "-"}
	case HintNone:
		return nil
	}
	return []string{fmt.Sprintf("%s %v", kind, h)}
}

// apiEndpoint makes an API endpoint of words: its address, then a letter
// for the conditions, @ and its node, zones= and nodes= with hints.
func apiEndpoint(spec string) discoveryv1.Endpoint {
	words := strings.Fields(spec)
	e := discoveryv1.Endpoint{Addresses: []string{words[0]}}
	for _, w := range words[1:] {
		switch {
		case strings.HasPrefix(w, "@"):
			e.NodeName = new(w[1:])
		case strings.HasPrefix(w, "zones="):
			h := hintsOf(&e)
			for z := range strings.SplitSeq(w[len("zones="):], ",") {
				h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: z})
			}
		case strings.HasPrefix(w, "nodes="):
			h := hintsOf(&e)
			for n := range strings.SplitSeq(w[len("nodes="):], ",") {
				h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: n})
			}
		default:
			setConditions(&e, w)
		}
	}
	return e
}

func hintsOf(e *discoveryv1.Endpoint) *discoveryv1.EndpointHints {
	if e.Hints == nil {
		e.Hints = &discoveryv1.EndpointHints{}
	}
	return e.Hints
}

func setConditions(e *discoveryv1.Endpoint, letter string) {
	for _, l := range conditionLetters() {
		if l.letter == letter {
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(l.ready), Serving: new(l.serving), Terminating: new(l.terminating)}
			return
		}
	}
	panic(fmt.Sprintf("no conditions %q", letter))
}

// apiSlice makes a slice ns/name of Service ns/service with port http, TCP 80.
func apiSlice(name, service string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{apiPort("http", v1.ProtocolTCP, 80)},
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, apiEndpoint(e))
	}
	return s
}

func apiPort(name string, protocol v1.Protocol, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: new(name), Protocol: new(protocol), Port: new(number)}
}

// with returns a changed copy.
func with(s *discoveryv1.EndpointSlice, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	change(s)
	return s
}

// webPort is the key of a port of Service ns/web, TCP and IPv4.
func webPort(port string) PortKey {
	return PortKey{
		Service:  types.NamespacedName{Namespace: "ns", Name: "web"},
		Port:     port,
		Protocol: v1.ProtocolTCP,
		Family:   v1.IPv4Protocol,
	}
}

func sliceName(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

// notices collects the calls of changed by a Cache.
type notices struct{ keys []PortKey }

func (n *notices) add(k PortKey) { n.keys = append(n.keys, k) }

// take returns the notices since the last take, as sorted text.
func (n *notices) take() []string {
	var out []string
	for _, k := range n.keys {
		out = append(out, keyText(k))
	}
	n.keys = nil
	slices.Sort(out)
	return out
}

func keyText(k PortKey) string {
	return fmt.Sprintf("%s:%s/%s/%s", k.Service, k.Port, k.Protocol, k.Family)
}

// contents formats the endpoints of all ports of a Cache.
func contents(c *Cache) map[string][]string {
	out := map[string][]string{}
	for key := range c.ports {
		out[keyText(key)] = text(c.Endpoints(key))
	}
	return out
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("unexpected error: %v", err)
	}
}
