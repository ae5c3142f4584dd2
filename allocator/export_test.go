package allocator

import "math/rand/v2"

// ChooseBy makes a pool choose keys by a source, so that a seed repeats a test.
func (p *Pool) ChooseBy(source *rand.Rand) {
	for _, r := range p.index.parts {
		r.random = source.Uint64N
	}
}
