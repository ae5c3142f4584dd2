package backends_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
)

func TestIdentityComplete(t *testing.T) {
	defaults := backends.Identity{Name: "vipkit", Mark: 0x4000}
	long := strings.Repeat("a", 24)
	for _, c := range []struct {
		given, want backends.Identity
		err         string // what the error must name; empty for none
	}{
		{given: backends.Identity{}, want: defaults},
		{given: backends.Identity{Mark: 8}, want: backends.Identity{Name: "vipkit", Mark: 8}},
		{given: backends.Identity{Name: "a-2", Mark: 1, Priority: -50}, want: backends.Identity{Name: "a-2", Mark: 1, Priority: -50}},
		{given: backends.Identity{Name: long, Mark: 1 << 31, Priority: 50}, want: backends.Identity{Name: long, Mark: 1 << 31, Priority: 50}},
		{given: backends.Identity{Name: long + "a"}, err: "name"},
		{given: backends.Identity{Name: "2a"}, err: "name"},
		{given: backends.Identity{Name: "-a"}, err: "name"},
		{given: backends.Identity{Name: "A"}, err: "name"},
		{given: backends.Identity{Name: "a b"}, err: "name"},
		{given: backends.Identity{Name: "a;flush ruleset"}, err: "name"},
		{given: backends.Identity{Name: "ä"}, err: "name"},
		{given: backends.Identity{Mark: 3}, err: "mark"},
		{given: backends.Identity{Priority: 51}, err: "priority"},
		{given: backends.Identity{Priority: -51}, err: "priority"},
	} {
		got, err := c.given.Complete(defaults)
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%+v: got error %v, want none", c.given, err)
		case c.err == "":
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", c.given, diff)
			}
		case err == nil || !strings.Contains(err.Error(), c.err):
			t.Errorf("%+v: got error %v, want one about the %s", c.given, err, c.err)
		}
	}
}
