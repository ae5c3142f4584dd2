package iptables

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
)

// Missing options get defaults, and invalid ones are refused.
func TestOptions(t *testing.T) {
	t.Parallel()
	both := []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	identity := backends.Identity{Name: backends.DefaultName, Mark: 0x4000}
	for _, c := range []struct {
		what      string
		given     Options
		want      Options
		isRefused bool
	}{
		{what: "nothing", want: Options{Identity: identity, Families: both, LockWait: DefaultLockWait}},
		{
			what:  "all",
			given: Options{Identity: identity, Families: both[1:], Flavour: Legacy, LockWait: time.Second},
			want:  Options{Identity: identity, Families: both[1:], Flavour: Legacy, LockWait: time.Second},
		},
		{what: "the other flavour", given: Options{Flavour: NFT}, want: Options{Identity: identity, Families: both, Flavour: NFT, LockWait: DefaultLockWait}},
		{what: "a mark of two bits", given: Options{Identity: backends.Identity{Mark: 3}}, isRefused: true},
		{what: "an unknown family", given: Options{Families: []v1.IPFamily{v1.IPv4Protocol, "IPv5"}}, isRefused: true},
		{what: "no family", given: Options{Families: []v1.IPFamily{v1.IPFamilyUnknown}}, isRefused: true},
		{what: "an unknown flavour", given: Options{Flavour: "ebtables"}, isRefused: true},
		{what: "a short wait", given: Options{LockWait: time.Second - 1}, isRefused: true},
		{what: "a negative wait", given: Options{LockWait: -time.Second}, isRefused: true},
		{what: "a wait that is too long for the program", given: Options{LockWait: time.Second << 31}, isRefused: true},
	} {
		got, err := c.given.complete()
		if (err != nil) != c.isRefused {
			t.Errorf("%s: got error %v, want one: %t", c.what, err, c.isRefused)
		}
		if diff := cmp.Diff(c.want, got); diff != "" && !c.isRefused {
			t.Errorf("%s: options (-want +got):\n%s", c.what, diff)
		}
	}
}
