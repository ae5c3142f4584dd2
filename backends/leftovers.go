package backends

// leftovers are the objects that were found on the way from the zero snapshot,
// each marked once somebody wants it. A nil pointer is none.
type leftovers[K Key, V comparable] struct {
	objects []Object[K, V]
	index   map[K]int32
	claimed []bool
}

func newLeftovers[K Key, V comparable](objects []Object[K, V]) *leftovers[K, V] {
	l := &leftovers[K, V]{
		objects: objects,
		index:   make(map[K]int32, len(objects)),
		claimed: make([]bool, len(objects)),
	}
	for i := range objects {
		l.index[objects[i].Key] = int32(i)
	}
	return l
}

// find gives the place of an object that nobody has claimed yet.
func (l *leftovers[K, V]) find(k K) (place int32, found bool) {
	if l == nil {
		return 0, false
	}
	place, found = l.index[k]
	return place, found && !l.claimed[place]
}

// release takes back claims that came to nothing.
func (l *leftovers[K, V]) release(places []int32) {
	for _, i := range places {
		l.claimed[i] = false
	}
}

// removals gives the operations that remove what nobody has claimed.
func (l *leftovers[K, V]) removals() []Op[K, V] {
	var ops []Op[K, V]
	if l == nil {
		return nil
	}
	for i := range l.objects {
		// Of two objects of one name the later one is in the index.
		if o := &l.objects[i]; !l.claimed[i] && l.index[o.Key] == int32(i) {
			ops = append(ops, Op[K, V]{Kind: Remove, Key: o.Key, Value: o.Value})
		}
	}
	return ops
}
