package allocator_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

// TestLimitCountsTheNetworkAddress compares ranges that have a limit with a loop over
// their addresses.
func TestLimitCountsTheNetworkAddress(t *testing.T) {
	for _, text := range []string{"10.96.0.0/28", "10.96.0.0/30", "fd00::/124", "fd00::/127"} {
		prefix := netip.MustParsePrefix(text)
		for limit := range uint64(20) {
			r, err := allocator.NewRange(allocator.Config{Prefix: prefix, Limit: limit})
			if err != nil {
				t.Fatalf("%s, %d: %v", text, limit, err)
			}
			var want []string
			a := prefix.Addr()
			for i := uint64(1); limit == 0 || i < limit; i++ {
				if a = a.Next(); !prefix.Contains(a) || a.Is4() && !prefix.Contains(a.Next()) {
					break // after the end, or the broadcast address
				}
				want = append(want, a.String())
			}
			if size := r.Size(); size != uint64(len(want)) {
				t.Errorf("%s with a limit of %d: got %d keys, want %d", text, limit, size, len(want))
			}
			for i, k := range want {
				if got := fmt.Sprint(r.Key(uint64(i))); got != k {
					t.Errorf("%s with a limit of %d: key %d: got %s, want %s", text, limit, i, got, k)
				}
			}
		}
	}
}
