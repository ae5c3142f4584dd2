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
		failed  []ipvs.Failure
		missing []string
		isError bool
	}{
		"all":                     {},
		"one is missing":          {failed: []ipvs.Failure{{Index: 2, Err: unix.ENOENT}, {Index: 3, Err: unix.ESRCH}}, missing: []string{second}},
		"another program removes": {failed: []ipvs.Failure{{Index: 3, Err: unix.ESRCH}}},
		"no memory":               {failed: []ipvs.Failure{{Index: 2, Err: unix.ENOMEM}, {Index: 3, Err: unix.ESRCH}}, isError: true},
		"no removal":              {failed: []ipvs.Failure{{Index: 3, Err: unix.ENOMEM}}, isError: true},
	} {
		got, err := probed(c.failed)
		if (err != nil) != c.isError {
			t.Errorf("%s: got error %v", what, err)
		}
		want := slices.DeleteFunc(Schedulers(), func(name string) bool { return slices.Contains(c.missing, name) })
		if !c.isError && !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
}
