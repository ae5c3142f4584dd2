package allocator

// maxSpare is how many keys there are at most in a map that is used again when it is empty.
const maxSpare = 64

// freed remembers which keys were freed while answers of the store were on their way. Such
// an answer may be from before that, and must not bring back what it says of them: nobody
// who follows the store would hear a second time that it is gone.
//
// Time is divided into turns, of which the last two count. A turn ends when no answer is
// on its way any more that was asked for in the one before; so what is remembered does not
// grow while there is always another answer to wait for.
type freed struct {
	turn    int                // 0 and 1, one after the other
	waiting [2]int             // answers on their way, by the turn in which they were asked for
	keys    [2]map[Key]Version // by the turn in which they were freed, with the version of that
}

// ask notes that an answer is on its way, and gives the turn.
func (f *freed) ask() int {
	f.waiting[f.turn]++
	return f.turn
}

// answered notes that an answer of a turn has come, and was taken in.
func (f *freed) answered(turn int) {
	f.waiting[turn]--
	for range len(f.keys) {
		if before := 1 - f.turn; f.waiting[before] == 0 {
			f.turn = before
			if len(f.keys[before]) > maxSpare {
				f.keys[before] = nil
			}
			clear(f.keys[before])
		}
	}
}

// note remembers that a key was freed by the change of a version, if that can matter.
func (f *freed) note(k Key, version Version) {
	if f.waiting == [2]int{} {
		return
	}
	if f.keys[f.turn] == nil {
		f.keys[f.turn] = map[Key]Version{}
	}
	f.keys[f.turn][k] = max(f.keys[f.turn][k], version)
}

// has reports whether a claim is known to be gone.
func (f *freed) has(c Claim) bool { return max(f.keys[0][c.Key], f.keys[1][c.Key]) >= c.Version }
