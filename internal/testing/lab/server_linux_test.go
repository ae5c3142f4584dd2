package lab

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestParseAnswer(t *testing.T) {
	s := &Server{name: "local"}
	client, own := netip.MustParseAddrPort("[::ffff:10.0.0.6]:1024"), netip.MustParseAddrPort("[fd00::1]:8080")
	got, err := ParseAnswer(string(s.answer("17", client, own)))
	testenv.NoError(t, err)
	want := Answer{Question: "17", Name: "local", Client: netip.MustParseAddrPort("10.0.0.6:1024"), Own: own}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	for _, line := range []string{"", "0 local 10.0.0.6:1", "0 local 10.0.0.6 10.0.0.5:80", "0 local 10.0.0.6:1 here", "0 a b c d"} {
		if a, err := ParseAnswer(line); err == nil {
			t.Errorf("ParseAnswer(%q): got %+v, want an error", line, a)
		}
	}
}
