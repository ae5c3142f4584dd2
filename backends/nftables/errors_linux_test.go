package nftables

import (
	"testing"
)

// Slots are adopted only if every one is filled, with a different endpoint, and listed once.
func TestFillSlots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// listed are pairs of a slot and the endpoint in it.
		listed [][2]int
		want   bool
	}{
		{"nothing", nil, true},
		{"in order", [][2]int{{0, 7}, {1, 8}, {2, 9}}, true},
		{"in any order", [][2]int{{2, 9}, {0, 7}, {1, 8}}, true},
		{"first slot missing", [][2]int{{1, 8}}, false},
		{"middle slot missing", [][2]int{{0, 7}, {2, 9}}, false},
		{"one slot listed twice, and one missing", [][2]int{{0, 7}, {2, 9}, {2, 9}}, false},
		{"one endpoint in two slots", [][2]int{{0, 7}, {1, 8}, {2, 7}}, false},
		{"a slot with a high number", [][2]int{{0, 7}, {1 << 20, 8}}, false},
	} {
		k, one := renderKernel(t), slotKey(0, 0)
		var objects []object
		var indexes []uint32
		for _, at := range c.listed {
			objects = append(objects, object{Key: slotKey(0, at[1])})
			indexes = append(indexes, uint32(at[0]))
		}
		if got := (&lister{kernel: k}).fillSlots(objects, indexes); got != c.want {
			t.Errorf("%s: fillSlots: got %t, want %t", c.name, got, c.want)
		}
		if n := len(k.tables.slots[one.slotPool()]); n > len(objects) {
			t.Errorf("%s: allocated slots: got %d, want at most %d, as many as are listed", c.name, n, len(objects))
		}
	}
}
