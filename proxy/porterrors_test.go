package proxy

import (
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPortErrorsAsProblems(t *testing.T) {
	var got []string
	for _, p := range (PortErrors{portName("b"): io.EOF, portName("a"): io.ErrNoProgress}).Problems() {
		got = append(got, p.Error())
		if !errors.Is(p, io.EOF) && !errors.Is(p, io.ErrNoProgress) {
			t.Errorf("%v: got no cause, want that of the port", p)
		}
	}
	want := []string{
		"Service ns/a: spec.ports: ns/a:http/TCP/IPv4: " + io.ErrNoProgress.Error(),
		"Service ns/b: spec.ports: ns/b:http/TCP/IPv4: EOF",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
