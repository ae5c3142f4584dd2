package userspace_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// Only the capture that marks packets reports the setting with which the kernel drops marked
// packets.
func TestCheckNode(t *testing.T) {
	t.Parallel()
	const setting = "net.ipv4.conf.all.src_valid_mark"
	for _, c := range []struct {
		capture userspace.Capture
		value   string
		want    []string
	}{
		{userspace.TPROXY, "0", nil},
		{userspace.TPROXY, "1", []string{setting}},
		{userspace.Redirect, "1", nil},
	} {
		ns := netnstest.NewNS(t)
		if err := ns.Sysctl("net/ipv4/conf/all/src_valid_mark", c.value); err != nil {
			t.Fatal(err)
		}
		b := netnstest.Open(t, ns, func() (*userspace.Backend, error) { return userspace.New(userspace.Options{Capture: c.capture}) })
		var got []string
		err := ns.Do(func() error {
			for _, p := range b.CheckNode(snapshot(one)) {
				got = append(got, p.Field)
			}
			return nil
		})
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%v with %s %s (-want +got), error %v:\n%s", c.capture, setting, c.value, err, diff)
		}
	}
}
