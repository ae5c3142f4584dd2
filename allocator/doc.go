// Package allocator hands out virtual IP addresses and node ports, and never one
// of them twice.
//
// It does not depend on any dataplane: it needs the standard library only.
//
// # Ranges
//
// A [Range] is one prefix or one row of ports in the memory of one process. Its
// first addresses are a band that is kept, as far as possible, for those who ask
// for a particular one: what is allocated dynamically comes from the rest until that
// is exhausted. How large the band is, [IPBand] and [PortBand] say; the rule is
// that of Kubernetes. Choosing and freeing a key takes some 100 ns, however full
// the range is.
package allocator
