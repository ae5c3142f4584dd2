package allocator

// DryRun answers what a [Range] would answer now, and changes nothing. Unlike the
// range itself it hands out the same key twice. Any number of goroutines may use it.
type DryRun struct{ r *Range }

// DryRun gives the range's view that changes nothing.
func (r *Range) DryRun() DryRun { return DryRun{r} }

// Allocate tells whether owner would get the key; see [Range.Allocate].
func (d DryRun) Allocate(owner Owner, key Key) error {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	_, err := d.r.core.canTake(owner, key)
	return err
}

// AllocateNext gives a key that owner could get; see [Range.AllocateNext].
func (d DryRun) AllocateNext(owner Owner) (Key, error) {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	i, err := d.r.core.canPick(owner)
	if err != nil {
		return Key{}, err
	}
	return d.r.core.key(i), nil
}

// AllocateN tells whether owner would get as many keys; see [Range.AllocateN].
func (d DryRun) AllocateN(owner Owner, count int) error {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	return d.r.core.hasRoom(owner, count)
}

// Release tells whether owner may free the key; see [Range.Release].
func (d DryRun) Release(owner Owner, key Key) error {
	d.r.mu.Lock()
	defer d.r.mu.Unlock()
	_, err := d.r.core.canPut(owner, key)
	return err
}
