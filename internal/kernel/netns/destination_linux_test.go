package netns

import "testing"

func TestDestinationErrors(t *testing.T) {
	t.Parallel()
	for name, control := range map[string][]byte{"none": nil, "cut off": {1, 0, 0}} {
		if a, ok := destination(control); ok {
			t.Errorf("%s: destination: got %v, want none", name, a)
		}
	}
}
