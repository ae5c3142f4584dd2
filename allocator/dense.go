package allocator

// pageSize is how many owners are allocated at once.
const pageSize = 256

// dense keeps small ranges: a bit an offset, and the owners in pages that exist
// once they were needed. It allocates nothing when offsets are used again.
type dense struct {
	n      uint64
	free   bitmap
	owners []*[pageSize]Owner
}

func newDense(n uint64, blocked []span) *dense {
	return &dense{
		n:      n,
		free:   newBitmap(n, blocked),
		owners: make([]*[pageSize]Owner, (n+pageSize-1)/pageSize),
	}
}

func (d *dense) isFree(i uint64) bool { return d.free.isFree(i) }

func (d *dense) take(i uint64, owner Owner) {
	d.free.take(i)
	page := d.owners[i/pageSize]
	if page == nil {
		page = new([pageSize]Owner)
		d.owners[i/pageSize] = page
	}
	page[i%pageSize] = owner
}

func (d *dense) put(i uint64) {
	d.free.put(i)
	d.owners[i/pageSize][i%pageSize] = ""
}

func (d *dense) owner(i uint64) (Owner, bool) {
	page := d.owners[i/pageSize]
	if page == nil {
		return "", false
	}
	owner := page[i%pageSize]
	return owner, owner != ""
}

func (d *dense) next(i uint64) (uint64, bool) { return d.free.next(i) }

// after copies the next taken offsets, in order.
func (d *dense) after(i uint64, into []entry) ([]entry, bool) {
	for ; i < d.n; i++ {
		if d.owners[i/pageSize] == nil {
			i |= pageSize - 1
			continue
		}
		if len(into) == cap(into) {
			return into, true
		}
		if owner := d.owners[i/pageSize][i%pageSize]; owner != "" {
			into = append(into, entry{offset: i, owner: owner})
		}
	}
	return into, false
}
