package kubestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/allocator"
)

// Ranges returns the ranges of the ServiceCIDR objects, the oldest first. A range whose
// object is being deleted or is not ready is draining. An error names objects that
// cannot be used, such as an IPv6 prefix shorter than /64; Ranges then also gives the
// ranges of all others. Call it at intervals, for [allocator.Pool.SetRanges].
func (s *Store) Ranges(ctx context.Context) ([]allocator.Config, error) {
	list, err := s.client.ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing ServiceCIDRs: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b networkingv1.ServiceCIDR) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var ranges []allocator.Config
	var unusable error
	for i := range list.Items {
		o := &list.Items[i]
		for _, text := range o.Spec.CIDRs {
			c, err := configOf(text)
			if err != nil {
				unusable = errors.Join(unusable, fmt.Errorf("ServiceCIDR %s: %w", o.Name, err))
				continue
			}
			c.Draining = !isReady(o)
			ranges = append(ranges, c)
		}
	}
	return ranges, unusable
}

// configOf reads the prefix of a range.
func configOf(text string) (allocator.Config, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return allocator.Config{}, err
	}
	c := allocator.Config{Prefix: prefix}
	_, err = allocator.NewRange(c)
	return c, err
}

// isReady reports whether addresses can be allocated from an object's ranges. An object
// without the condition Ready is ready.
func isReady(o *networkingv1.ServiceCIDR) bool {
	if o.DeletionTimestamp != nil {
		return false
	}
	for _, c := range o.Status.Conditions {
		if c.Type == networkingv1.ServiceCIDRConditionReady {
			return c.Status != metav1.ConditionFalse
		}
	}
	return true
}
