package ipvs

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// Only a refusal that says so means that the kernel has no scheduler.
func TestProbed(t *testing.T) {
	second := Schedulers()[1]
	for what, c := range map[string]struct {
		addition, removal error // of the second scheduler
		isMissing         bool
		isError           bool
	}{
		"all":                     {},
		"one is missing":          {addition: unix.ENOENT, isMissing: true},
		"another program removes": {removal: unix.ESRCH},
		"no memory":               {addition: unix.ENOMEM, isError: true},
		"no removal":              {removal: unix.ENOMEM, isError: true},
	} {
		added := ""
		got, err := probed(func(verb ipvs.Verb, name string) error {
			switch {
			case verb == ipvs.Remove && added != name:
				t.Errorf("%s: got a removal of scheduler %s after an addition of %q", what, name, added)
			case name != second:
				added = name
				return nil
			case verb == ipvs.Add:
				added = name
				return c.addition
			}
			return c.removal
		})
		if (err != nil) != c.isError {
			t.Errorf("%s: got error %v", what, err)
		}
		want := slices.DeleteFunc(Schedulers(), func(name string) bool { return c.isMissing && name == second })
		if !c.isError && !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
}
