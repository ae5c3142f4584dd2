package allocator

import "context"

// shared is what callers know about the reads of the whole store that they share.
type shared struct {
	turn  chan struct{} // holds the caller that reads
	begun int           // how many reads have begun
	last  int           // the number of the last one whose result counts for other callers
	err   error         // its result
}

// syncShared reads the whole store as Sync does, or waits for another caller that begins to do
// so after this call. So the store is not read more often because many callers find a full
// range, or an empty pool, at the same time.
func (p *Pool) syncShared(ctx context.Context) error {
	p.mu.Lock()
	before := p.reads.begun
	p.mu.Unlock()
	select {
	case p.reads.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.reads.turn }()
	p.mu.Lock()
	if p.reads.last > before {
		defer p.mu.Unlock()
		return p.reads.err
	}
	p.reads.begun++
	number := p.reads.begun
	p.mu.Unlock()
	err := p.Sync(ctx)
	if err == nil || ctx.Err() == nil { // the end of this context concerns no other caller
		p.mu.Lock()
		p.reads.last, p.reads.err = number, err
		p.mu.Unlock()
	}
	return err
}
