package ipvs

import (
	"net/netip"
	"sync"
	"testing"
)

// An address that the device had before a listing and has in it never counts as foreign meanwhile. WaitDrift reads
// which addresses these are without the lock of the listing.
func TestExpectedAddressesDuringListing(t *testing.T) {
	d := &device{}
	var own []netip.Addr
	for i := range 1000 {
		own = append(own, netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}))
	}
	gone, last := netip.MustParseAddr("10.96.0.1"), own[len(own)-1]
	d.expectOnly(append(own, gone))
	done := make(chan struct{})
	var listing sync.WaitGroup
	listing.Go(func() {
		defer close(done)
		for range 200 {
			d.expectOnly(own)
		}
	})
	for isListing := true; isListing; {
		select {
		case <-done:
			isListing = false
		default:
			if !d.expects(last) {
				t.Fatalf("address %v: got a foreign one during a listing, want an expected one", last)
			}
		}
	}
	listing.Wait()
	if has := d.expects(gone); has || !d.isAsExpected(own) {
		t.Errorf("after listings of %d addresses: address %v: got expected %v, want false", len(own), gone, has)
	}
}
