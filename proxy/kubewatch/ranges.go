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
	handled []netip.Prefix // passed to handle last
}

func newRanges(handle func([]netip.Prefix)) *ranges {
	return &ranges{handle: handle, objects: map[types.NamespacedName][]netip.Prefix{}}
}

// update adds or replaces a ServiceCIDR. The API server has validated its ranges; one that does
// not parse is skipped, so that no traffic is dropped because of it.
func (r *ranges) update(c *networkingv1.ServiceCIDR) {
	var all []netip.Prefix
	for _, text := range c.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	r.objects[nameOf(c)] = all
	r.publish()
}

func (r *ranges) remove(name types.NamespacedName) {
	delete(r.objects, name)
	r.publish()
}

// publish calls handle if the ranges have changed.
func (r *ranges) publish() {
	var all []netip.Prefix
	for _, o := range r.objects {
		all = append(all, o...)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	if !slices.Equal(all, r.handled) {
		r.handled = all
		r.handle(slices.Clone(all))
	}
}
