package allocator

// probes is how many random keys are tried before the next free one after a random key
// is taken. It keeps the choice nearly uniform up to three quarters full.
const probes = 4

// core is a range of a pool: the taken offsets, and the choice of the next one.
type core struct {
	*Range
	used, bandUsed uint64
	taken          set
	// random returns a number below n; tests can repeat its numbers.
	random func(n uint64) uint64
}

// pick chooses a free offset, of which there must be one: of the upper band as long as it has one.
func (r *core) pick() uint64 {
	switch {
	case r.used-r.bandUsed < r.n-r.band:
		return r.pickWithin(r.band, r.n)
	default:
		return r.pickWithin(0, r.band)
	}
}

// pickWithin chooses one of the offsets from first to before end, of which at
// least one is free: a random one, or the next free one after it.
func (r *core) pickWithin(first, end uint64) uint64 {
	for range probes {
		if i := first + r.random(end-first); r.isFree(i) {
			return i
		}
	}
	// The lower band is used only when the upper one is full: no offset after end is free.
	if i, ok := r.next(first + r.random(end-first)); ok {
		return i
	}
	i, _ := r.next(first)
	return i
}

func (r *core) isFree(i uint64) bool { return !r.taken.has(i) }

// next returns the first free offset that is not less than i.
func (r *core) next(i uint64) (uint64, bool) {
	i = r.taken.next(i)
	return i, i < r.n
}

// take marks a free offset, put a taken one.
func (r *core) take(i uint64) {
	r.taken.add(i)
	r.used++
	if i < r.band {
		r.bandUsed++
	}
}

func (r *core) put(i uint64) {
	r.taken.remove(i)
	r.used--
	if i < r.band {
		r.bandUsed--
	}
}

// gives reports whether the range could allocate a key if it were free.
func (r *core) gives(k Key) bool {
	_, ok := r.Offset(k)
	return ok && !r.config.Draining
}

func (r *core) stats() Stats {
	return Stats{Size: r.n, Used: r.used, BandSize: r.band, BandUsed: r.bandUsed}
}
