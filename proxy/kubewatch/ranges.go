package kubewatch

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ranges collects the service ranges of all ServiceCIDRs. It is called from one
// goroutine.
type ranges struct {
	handle  func([]netip.Prefix)
	objects map[types.NamespacedName][]netip.Prefix
	told    []netip.Prefix
}

func newRanges(handle func([]netip.Prefix)) *ranges {
	return &ranges{handle: handle, objects: map[types.NamespacedName][]netip.Prefix{}}
}

// update takes a ServiceCIDR. The API server has checked its ranges; one that means
// nothing here is passed over, so that no traffic is dropped for it.
func (r *ranges) update(c *networkingv1.ServiceCIDR) {
	var all []netip.Prefix
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	r.objects[nameOf(c)] = all
	r.tell()
}

func (r *ranges) remove(name types.NamespacedName) {
	delete(r.objects, name)
	r.tell()
}

func (r *ranges) tell() {
	var all []netip.Prefix
	for _, o := range r.objects {
		all = append(all, o...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	if !slices.Equal(all, r.told) {
		r.told = all
		r.handle(slices.Clone(all))
	}
}
