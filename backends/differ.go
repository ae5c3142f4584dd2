package backends

import "slices"

// differ finds the difference of two renderings of a service port. Most objects of a
// port are equal and in the same order; so the lists are walked side by side, and only
// the others are searched for.
type differ[K Key, V comparable] struct {
	removed, added []Object[K, V]
	// changed are the objects with another value.
	changed []Object[K, V]
}

func (d *differ[K, V]) run(old, new []Object[K, V]) {
	d.reset()
	for len(old) > 0 && len(new) > 0 && equal(&old[0], &new[0]) {
		old, new = old[1:], new[1:]
	}
	for len(old) > 0 && len(new) > 0 && equal(&old[len(old)-1], &new[len(new)-1]) {
		old, new = old[:len(old)-1], new[:len(new)-1]
	}
	d.walk(old, new)
	d.pair()
}

func equal[K Key, V comparable](a, b *Object[K, V]) bool {
	return a.Key == b.Key && a.Value == b.Value
}

func (d *differ[K, V]) reset() {
	d.removed, d.added, d.changed = reuse(d.removed), reuse(d.added), reuse(d.changed)
}

// reuse empties a list, and drops the memory of an unusually long one.
func reuse[T any](list []T) []T {
	if cap(list) > chunk {
		return nil
	}
	return list[:0]
}

// window is how far the walk searches ahead. An object that moved farther is in both
// removed and added until pair removes it.
const window = 8

// walk goes through both lists at once.
func (d *differ[K, V]) walk(old, new []Object[K, V]) {
	for len(old) > 0 && len(new) > 0 {
		if old[0].Key == new[0].Key {
			d.same(&old[0], &new[0])
			old, new = old[1:], new[1:]
			continue
		}
		if i := ahead(old, new[0].Key); i > 0 {
			d.removed = append(d.removed, old[:i]...)
			old = old[i:]
			continue
		}
		if i := ahead(new, old[0].Key); i > 0 {
			d.added = append(d.added, new[:i]...)
			new = new[i:]
			continue
		}
		d.removed, d.added = append(d.removed, old[0]), append(d.added, new[0])
		old, new = old[1:], new[1:]
	}
	d.removed, d.added = append(d.removed, old...), append(d.added, new...)
}

// ahead finds a key within the window behind the first element.
func ahead[K Key, V comparable](list []Object[K, V], k K) int {
	for i := 1; i < min(len(list), window); i++ {
		if list[i].Key == k {
			return i
		}
	}
	return -1
}

func (d *differ[K, V]) same(old, new *Object[K, V]) {
	if old.Value != new.Value {
		d.changed = append(d.changed, *new)
	}
}

// pair finds objects that were removed at one index and added at another.
func (d *differ[K, V]) pair() {
	if len(d.removed) == 0 || len(d.added) == 0 {
		return
	}
	if len(d.removed)*len(d.added) <= linearLimit*linearLimit {
		d.added = slices.DeleteFunc(d.added, func(o Object[K, V]) bool {
			i := slices.IndexFunc(d.removed, func(r Object[K, V]) bool { return r.Key == o.Key })
			if i < 0 {
				return false
			}
			d.same(&d.removed[i], &o)
			d.removed = slices.Delete(d.removed, i, i+1)
			return true
		})
		return
	}
	d.pairMany()
}

// pairMany does the same with an index. The key of a shared object may be in a list
// several times.
func (d *differ[K, V]) pairMany() {
	indexes := make(map[K][]int, len(d.removed))
	for i := range d.removed {
		indexes[d.removed[i].Key] = append(indexes[d.removed[i].Key], i)
	}
	paired := make([]bool, len(d.removed))
	d.added = slices.DeleteFunc(d.added, func(o Object[K, V]) bool {
		at := indexes[o.Key]
		if len(at) == 0 {
			return false
		}
		indexes[o.Key] = at[1:]
		paired[at[0]] = true
		d.same(&d.removed[at[0]], &o)
		return true
	})
	i := -1
	d.removed = slices.DeleteFunc(d.removed, func(Object[K, V]) bool {
		i++
		return paired[i]
	})
}
