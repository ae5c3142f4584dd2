package allocator

import "time"

// Observer is notified of what a pool does, for metrics. The pool waits for its
// methods, and may call them from several goroutines at once.
type Observer interface {
	// Allocated gets the requests of each Reserve and Allocate.
	Allocated(Allocation)
	// Synced gets the result of each attempt to read the store, and the error that
	// ended a watch.
	Synced(err error)
}

// Allocation is the part of one range in one request. If keys of several ranges serve
// a request, each range has an Allocation.
type Allocation struct {
	// Kind is the kind of the keys.
	Kind Kind
	// IsStatic says that the request named a key.
	IsStatic bool
	// Range is the range in canonical form: the one that the keys are from. If the
	// request has failed, there is one Allocation for each range that might have
	// served it, and one without a range if there is none.
	Range string
	// Count is how many keys the range gave; 0 with an error.
	Count int
	// Took is how long the whole call took.
	Took time.Duration
	// Err is the error of the whole call.
	Err error
}

// observe notifies the observer of requests and, if there is no error, of the claims
// that serve them.
func (p *Pool) observe(requests []Request, claims []Claim, took time.Duration, err error) {
	var all []Allocation
	p.mu.Lock()
	for _, q := range requests {
		about := Allocation{Kind: q.kind(), IsStatic: q.Key.Kind() != 0, Took: took, Err: err}
		if err != nil {
			all = append(all, p.index.refused(q, about)...)
			continue
		}
		all = append(all, p.index.served(claims[:q.count()], about)...)
		claims = claims[q.count():]
	}
	p.mu.Unlock()
	for _, a := range all {
		p.observer.Allocated(a)
	}
}

// served divides claims among the ranges that have them. A key that is in several
// ranges counts for the first one that could allocate it.
func (x *index) served(claims []Claim, about Allocation) []Allocation {
	counts := make([]int, len(x.parts)+1)
	for _, c := range claims {
		at := 0
		for at < len(x.parts) && !x.parts[at].gives(c.Key) {
			at++
		}
		counts[at]++ // the last one is for keys whose range was removed meanwhile
	}
	var all []Allocation
	for at, n := range counts {
		if n == 0 {
			continue
		}
		about.Count, about.Range = n, ""
		if at < len(x.parts) {
			about.Range = x.parts[at].config.String()
		}
		all = append(all, about)
	}
	return all
}

// refused returns an Allocation for each range that might have served a request: the
// ranges of its kind that have the key, or all ranges of its kind if none has it.
func (x *index) refused(q Request, about Allocation) []Allocation {
	var having, others []Allocation
	for _, r := range x.parts {
		if r.kind != about.Kind || r.config.Draining {
			continue
		}
		about.Range = r.config.String()
		if about.IsStatic && r.gives(q.Key) {
			having = append(having, about)
		} else {
			others = append(others, about)
		}
	}
	about.Range = ""
	switch {
	case len(having) > 0:
		return having
	case len(others) > 0:
		return others
	}
	return []Allocation{about}
}
