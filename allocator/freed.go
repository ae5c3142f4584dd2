package allocator

// freed remembers the keys that were freed while requests to the store were in flight.
// The reply to such a request may be older, and must not restore the claims: the watch
// reports a deletion only once.
//
// Time is divided into turns, of which the last two count. A turn ends when no request of
// the previous turn is in flight. So freed does not grow even if some request is always
// in flight.
type freed struct {
	turn    int                // 0 or 1, alternating
	waiting [2]int             // requests in flight, by the turn in which they began
	keys    [2]map[Key]Version // keys by the turn in which they were freed, with the version of the deletion
}

// beginRequest records that a request is in flight, and gives its turn.
func (f *freed) beginRequest() int {
	f.waiting[f.turn]++
	return f.turn
}

// endRequest records that the reply to a request of a turn was processed.
func (f *freed) endRequest(turn int) {
	f.waiting[turn]--
	for range len(f.keys) {
		if before := 1 - f.turn; f.waiting[before] == 0 {
			f.turn, f.keys[before] = before, nil
		}
	}
}

// note records that a change of this version freed a key, if a request is in flight.
func (f *freed) note(k Key, version Version) {
	if f.waiting == [2]int{} {
		return
	}
	if f.keys[f.turn] == nil {
		f.keys[f.turn] = map[Key]Version{}
	}
	f.keys[f.turn][k] = max(f.keys[f.turn][k], version)
}

// has reports whether a claim is known to be deleted.
func (f *freed) has(c Claim) bool { return max(f.keys[0][c.Key], f.keys[1][c.Key]) >= c.Version }
