package testenv

import (
	"encoding/json"
	"fmt"
	"testing"
)

// RoundTrip checks that each value of an enumeration comes back from JSON, as a value and
// as the key of a map, that their names differ, and that a value after the last one, and
// an unknown name, are errors.
func RoundTrip[T interface {
	~uint8
	fmt.Stringer
}](t *testing.T, first, last T) {
	t.Helper()
	names := map[string]bool{}
	for v := first; v <= last; v++ {
		names[v.String()] = true
		data, err := json.Marshal(map[T]T{v: v})
		if err != nil {
			t.Errorf("%T %d: %v", v, v, err)
			continue
		}
		if want := fmt.Sprintf("{%q:%q}", v, v); string(data) != want {
			t.Errorf("%T %d: got JSON %s, want %s", v, v, data, want)
		}
		var back map[T]T
		if err := json.Unmarshal(data, &back); err != nil || len(back) != 1 || back[v] != v {
			t.Errorf("%T %d from %s: got %v, error %v", v, v, data, back, err)
		}
	}
	if len(names) != int(last-first)+1 {
		t.Errorf("%T: got names %v, want one for each value", last, names)
	}
	for v := last + 1; v > last; v++ {
		if names[v.String()] {
			t.Errorf("%T %d: got name %v, which another value has", v, uint8(v), v)
		}
	}
	if data, err := json.Marshal(last + 1); err == nil {
		t.Errorf("%T %d: got JSON %s, want an error", last, last+1, data)
	}
	v := last
	if err := json.Unmarshal([]byte(`"no name"`), &v); err == nil || v != last {
		t.Errorf("%T from an unknown name: got %v, error %v, want an error", last, v, err)
	}
}
