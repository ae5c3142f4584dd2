package allocator

const (
	// denseOwners is how many owners of neighbours are kept together.
	denseOwners = 64
	// maxSpare is how many empty pages wait to be used again.
	maxSpare = 16
)

// page holds the owners of neighbouring offsets.
type page [denseOwners]Owner

// dense keeps ranges of moderate size: a bit an offset, and the owners in pages that
// exist as long as an offset of theirs is taken. How many are taken stands apart
// from the pages: with millions of owners, each look into a page is a way to the
// memory and back.
type dense struct {
	n      uint64
	free   bitmap
	owners []*page // nil if nobody asks for owners
	counts []uint8 // of each page
	spare  []*page
}

func newDense(n uint64, blocked []span, keepOwners bool) *dense {
	d := &dense{n: n, free: newBitmap(n, blocked)}
	if keepOwners {
		pages := (n + denseOwners - 1) / denseOwners
		d.owners, d.counts = make([]*page, pages), make([]uint8, pages)
		d.spare = make([]*page, 0, maxSpare)
	}
	return d
}

func (d *dense) isFree(i uint64) bool { return d.free.isFree(i) }

func (d *dense) take(i uint64, owner Owner) {
	d.free.take(i)
	if d.owners == nil {
		return
	}
	number := i / denseOwners
	if d.counts[number] == 0 {
		d.owners[number] = d.newPage()
	}
	d.counts[number]++
	d.owners[number][i%denseOwners] = owner
}

func (d *dense) newPage() *page {
	last := len(d.spare) - 1
	if last < 0 {
		return new(page)
	}
	p := d.spare[last]
	d.spare = d.spare[:last]
	return p
}

func (d *dense) put(i uint64) {
	d.free.put(i)
	if d.owners == nil {
		return
	}
	number := i / denseOwners
	d.owners[number][i%denseOwners] = ""
	if d.counts[number]--; d.counts[number] > 0 {
		return
	}
	if len(d.spare) < maxSpare {
		d.spare = append(d.spare, d.owners[number])
	}
	d.owners[number] = nil
}

func (d *dense) owner(i uint64) (Owner, bool) {
	if d.owners == nil || d.owners[i/denseOwners] == nil {
		return "", false
	}
	owner := d.owners[i/denseOwners][i%denseOwners]
	return owner, owner != ""
}

func (d *dense) next(i uint64) (uint64, bool) { return d.free.next(i) }

// after copies the next taken offsets, in order, as many as there is room for.
func (d *dense) after(i uint64, into []entry) ([]entry, bool) {
	for ; d.owners != nil && i < d.n; i++ {
		p := d.owners[i/denseOwners]
		if p == nil {
			i |= denseOwners - 1
			continue
		}
		if len(into) == cap(into) {
			return into, true
		}
		if owner := p[i%denseOwners]; owner != "" {
			into = append(into, entry{offset: i, owner: owner})
		}
	}
	return into, false
}
