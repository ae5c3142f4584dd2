package nftables

import "strconv"

// A pick chain serves all frontends with up to so many endpoints: a power of two
// from 4. So the chain, and with it the verdict of a frontend, changes only when
// the number of endpoints leaves its class, and the kernel does not have to check
// the whole table for every endpoint that comes or goes: it does so for each new
// verdict that names a chain, some milliseconds at tens of thousands of Services.

// picks is how many random slots a pick chain tries before it takes one that
// is sure to be filled. At least half of the slots are, but where there is a
// single endpoint, so that a 64th of the connections, at the most, get past them
// and are not shared out among all endpoints.
const picks = 6

// classOf gives the class of a number of endpoints, at least 1.
func classOf(n int) uint32 {
	c := uint32(4)
	for int64(c) < int64(n) {
		c *= 2
	}
	return c
}

// surelyFilled gives how many slots are filled by the smallest number of
// endpoints of a class.
func surelyFilled(class uint32) uint32 {
	if class == 4 {
		return 1
	}
	return class/2 + 1
}

// pickChain writes the rules that choose an endpoint. A packet may find the
// frontend as it was before a commit and the slots as they are after it; so
// there is a next try behind each, slot 0 behind them all, and in the end the
// packet is dropped rather than sent on untranslated: the client tries again.
func (a *assembler) pickChain(class uint32, set string, nodePort bool) {
	for range picks {
		a.rule(a.pick(set, class, nodePort))
	}
	if n := surelyFilled(class); n > 1 {
		a.rule(a.pick(set, n, nodePort))
	}
	a.rule(a.pick(set, 1, nodePort))
	a.rule(a.drop())
}

func className(class uint32) string { return strconv.FormatUint(uint64(class), 10) }
