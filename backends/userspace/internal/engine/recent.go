package engine

import "container/list"

// recent is a map that holds a bounded number of things, the newest ones. All it
// does takes constant time. The zero value of at and order is usable.
type recent[K comparable, V any] struct {
	limit int
	at    map[K]*list.Element
	order list.List // of *entry, that which was put first in front
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// get gives what is at a key; nil if there is nothing.
func (r *recent[K, V]) get(k K) *V {
	if e, ok := r.at[k]; ok {
		return &valueOf[K, V](e).value
	}
	return nil
}

// put makes room, by forgetting what was put first, and gives what is new at a
// key.
func (r *recent[K, V]) put(k K, v V) {
	r.remove(k)
	if r.at == nil {
		r.at = map[K]*list.Element{}
	}
	if len(r.at) >= r.limit {
		r.remove(valueOf[K, V](r.order.Front()).key)
	}
	r.at[k] = r.order.PushBack(&entry[K, V]{k, v})
}

func (r *recent[K, V]) remove(k K) {
	if e, ok := r.at[k]; ok {
		r.order.Remove(e)
		delete(r.at, k)
	}
}

// removeWhile forgets what was put first, as long as something is true of it.
func (r *recent[K, V]) removeWhile(is func(*V) bool) {
	for e := r.order.Front(); e != nil; e = r.order.Front() {
		old := valueOf[K, V](e)
		if !is(&old.value) {
			return
		}
		r.remove(old.key)
	}
}

func valueOf[K comparable, V any](e *list.Element) *entry[K, V] {
	v, _ := e.Value.(*entry[K, V]) // nothing else is put in
	return v
}
