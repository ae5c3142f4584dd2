package nearest_test

import (
	"testing"

	"github.com/vipkit/vipkit/internal/nearest"
)

func TestName(t *testing.T) {
	kinds := []string{"Node", "Service", "EndpointSlice"}
	for _, c := range []struct {
		word  string
		known []string
		want  string // empty for none
	}{
		{"Servce", kinds, "Service"},
		{"Serivce", kinds, "Service"},
		{"service", kinds, "Service"},
		{"Srvice", kinds, "Service"},
		{"Ndoe", kinds, "Node"},
		{"EndpointSlices", kinds, "EndpointSlice"},
		{"Endpoints", kinds, ""},
		{"Pod", kinds, ""},
		{"Role", kinds, ""},
		{"Secret", kinds, ""},
		{"", kinds, ""},
		{"port", []string{"type", "ports"}, "ports"},
		{"ports", []string{"ports2", "ports"}, "ports"},
		{"ab", []string{"abx", "aby"}, "abx"},
		{"port", nil, ""},
	} {
		got, ok := nearest.Name(c.word, c.known...)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("Name(%q, %q): got %q, %v, want %q", c.word, c.known, got, ok, c.want)
		}
	}
}
