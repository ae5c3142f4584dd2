package xtables

import (
	"strings"
	"sync"

	"github.com/vipkit/vipkit/backends"
)

// tables is the number of tables.
const tables = 3

// counts are the numbers of rules of one family: those that exist, as far as this backend has made or
// adopted them, and those that were written since begin.
type counts struct {
	mu sync.Mutex
	// chains are the numbers of rules of chains that are not open.
	chains      map[chainRef]int
	exist, last [tables]int
}

// begin begins to count what one sync writes.
func (c *counts) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = [tables]int{}
}

// wrote adds the rules of a script that was committed.
func (c *counts) wrote(s *script) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, n := range s.written {
		c.last[t] += n
	}
}

// hold records that operations were committed, or their results found. From the start, nothing else is held.
func (c *counts) hold(ops []Op, start bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if start || c.chains == nil {
		c.chains, c.exist = map[chainRef]int{}, [tables]int{}
	}
	for i := range ops {
		o := &ops[i]
		switch {
		case o.Key.Rule == "":
			ref, n := chainRef{o.Key.Table, o.Key.Chain}, 0
			if o.Kind != backends.Remove {
				n = strings.Count(o.Value, "\n")
			}
			c.exist[o.Key.Table] += n - c.chains[ref]
			if c.chains[ref] = n; n == 0 {
				delete(c.chains, ref)
			}
		case o.Kind == backends.Add:
			c.exist[o.Key.Table]++
		case o.Kind == backends.Remove:
			c.exist[o.Key.Table]--
		}
	}
}

// now returns the numbers of rules by table.
func (c *counts) now() (exist, last [tables]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exist, c.last
}
