package nftables

import (
	"strconv"

	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// A pick chain serves all frontends whose number of endpoints is in one class: up to a
// power of two from 4. So the chain, and with it the verdict of a frontend, changes only
// when the number of endpoints leaves its class. The kernel checks the whole table for
// each new verdict that names a chain, which takes some milliseconds with tens of
// thousands of Services; classes avoid that for most changes of endpoints.

// picks is how many random slots a pick chain tries before it uses one that is always
// filled. Unless there is a single endpoint, at least half of the slots are filled. So at most
// one connection of 64 finds only empty slots, and is not balanced over all endpoints.
const picks = 6

// classOf returns the class of a number of endpoints, at least 1.
func classOf(n int) uint32 {
	c := uint32(4)
	for int64(c) < int64(n) {
		c *= 2
	}
	return c
}

// surelyFilled returns the smallest number of endpoints of a class, and so of filled
// slots.
func surelyFilled(class uint32) uint32 {
	if class == 4 {
		return 1
	}
	return class/2 + 1
}

// pickChain writes the rules that choose an endpoint. A packet may see the frontend as
// before a commit and the slots as after it. So another rule follows each try, the last
// one tries slot 0, and a packet that finds no endpoint is dropped and not forwarded
// untranslated: the client retries.
func pickChain(a *nft.Assembler, class uint32, set string, nodePort bool) {
	for range picks {
		a.Rule(pick(a, set, class, nodePort))
	}
	if n := surelyFilled(class); n > 1 {
		a.Rule(pick(a, set, n, nodePort))
	}
	a.Rule(pick(a, set, 1, nodePort))
	a.Rule(a.Drop())
}

func className(class uint32) string { return strconv.FormatUint(uint64(class), 10) }
