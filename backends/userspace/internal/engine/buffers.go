package engine

import "sync"

// buffers lends memory. The zero value of a pool is not usable.
type buffers struct{ pool sync.Pool }

func newBuffers(size int) *buffers {
	return &buffers{sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

func (b *buffers) get() *[]byte {
	buf, _ := b.pool.Get().(*[]byte)
	return buf
}

func (b *buffers) put(buf *[]byte) {
	if buf != nil {
		b.pool.Put(buf)
	}
}

// lenders lend memory for the pieces of a connection (small) and for datagrams
// (large).
type lenders struct{ small, large *buffers }
