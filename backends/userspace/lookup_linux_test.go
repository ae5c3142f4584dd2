package userspace

import (
	"runtime"
	"testing"
	"unsafe"
)

// What the kernel is told of by number stays where it is while the stack grows.
func TestAddressesStay(t *testing.T) {
	done := make(chan bool)
	go func() { // on a stack that is still small
		defer close(done)
		var key [8]byte
		var pin runtime.Pinner
		defer pin.Unpin()
		before := address(&pin, &key[0])
		deep(1000)
		if after := uint64(uintptr(unsafe.Pointer(&key[0]))); before != after {
			t.Errorf("what was at %#x is at %#x", before, after)
		}
	}()
	<-done
}

func deep(n int) byte {
	var frame [128]byte
	if n > 0 {
		frame[n%len(frame)] = deep(n - 1)
	}
	return frame[0]
}
