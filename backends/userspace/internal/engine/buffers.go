package engine

import "sync"

// buffers are the pools of the engine: for the pieces of a connection (small), and for
// datagrams (large).
type buffers struct{ small, large *pool }

// pool lends buffers.
type pool struct{ pool sync.Pool }

func newPool(size int) *pool {
	return &pool{sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}}
}

// Get lends a buffer.
func (p *pool) Get() *[]byte {
	buf, _ := p.pool.Get().(*[]byte)
	return buf
}

// Put takes a buffer back; it may be nil.
func (p *pool) Put(buf *[]byte) {
	if buf != nil {
		p.pool.Put(buf)
	}
}
