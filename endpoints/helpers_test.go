package endpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

func letterOf(e *Endpoint) string {
	for _, l := range objects.Letters() {
		if l.Ready == e.Ready && l.Serving == e.Serving && l.Terminating == e.Terminating {
			return l.Letter
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

// apiSlice makes a slice ns/name of Service ns/service with port http, TCP 80.
func apiSlice(name, service string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := objects.Slice("ns/"+name, service, endpoints...)
	s.AddressType, s.Ports = discoveryv1.AddressTypeIPv4, objects.SlicePorts("http 80")
	return s
}

// webPort is the key of a port of Service ns/web, TCP and IPv4.
func webPort(port string) ServicePortName {
	return ServicePortName{
		NamespacedName: types.NamespacedName{Namespace: "ns", Name: "web"},
		Port:           port,
		Protocol:       v1.ProtocolTCP,
		Family:         v1.IPv4Protocol,
	}
}

func sliceName(name string) types.NamespacedName { return objects.Name("ns/" + name) }

// notices collects the calls of changed by a Cache.
type notices struct{ keys []ServicePortName }

func (n *notices) add(k ServicePortName) { n.keys = append(n.keys, k) }

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

func keyText(k ServicePortName) string {
	return fmt.Sprintf("%s:%s/%s/%s", k.NamespacedName, k.Port, k.Protocol, k.Family)
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
