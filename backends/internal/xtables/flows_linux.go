package xtables

import "github.com/vipkit/vipkit/proxy"

// Found implements [backends.Finder].
func (k *kernel) Found() []*proxy.ServicePort { return k.finds.Take() }

// findFrontends records the frontends that rules translate.
func (k *kernel) findFrontends(s saved) {
	k.finds.Take() // of an earlier listing
	for ref, rules := range s {
		if ref.table != NAT || !k.names.IsOpen(ref.name) {
			continue
		}
		for _, rule := range rules {
			if protocol, at, ok := frontendOf(rule); ok {
				k.finds.Add(k.Family.Family, protocol, at)
			}
		}
	}
}
