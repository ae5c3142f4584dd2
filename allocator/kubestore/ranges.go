package kubestore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/pause"
)

// Ranges returns the ranges of the ServiceCIDR objects, the oldest first. A range whose
// object is being deleted or is not ready is draining. An error names objects that
// cannot be used, such as an IPv6 prefix shorter than /64; Ranges then also gives the
// ranges of all others.
func (s *Store) Ranges(ctx context.Context) ([]allocator.Config, error) {
	known, _, err := s.serviceCIDRs(ctx)
	if err != nil {
		return nil, err
	}
	return rangesOf(known)
}

// Ranges are the ranges of the ServiceCIDR objects at one time; see [Store.WatchRanges].
type Ranges struct {
	// Configs are the ranges for a pool.
	Configs []allocator.Config
	// Unusable names the objects whose range cannot be used; nil if there are none.
	Unusable error
}

// WatchRanges yields the ranges as they are now, and again after each change, for
// [allocator.Pool.SetRanges], until ctx ends or the loop does. An error is the last item;
// the caller may call WatchRanges again.
func (s *Store) WatchRanges(ctx context.Context) iter.Seq2[Ranges, error] {
	return func(yield func(Ranges, error) bool) {
		err := s.watchRanges(ctx, func(known map[string]*networkingv1.ServiceCIDR) error {
			configs, unusable := rangesOf(known)
			if !yield(Ranges{Configs: configs, Unusable: unusable}, nil) {
				return errStop
			}
			return nil
		})
		if !errors.Is(err, errStop) {
			yield(Ranges{}, err)
		}
	}
}

func (s *Store) watchRanges(ctx context.Context, report func(map[string]*networkingv1.ServiceCIDR) error) error {
	for {
		known, version, err := s.serviceCIDRs(ctx)
		if err != nil {
			return err
		}
		if err := report(known); err != nil {
			return err
		}
		err = follow(ctx, s.client.ServiceCIDRs().Watch, version, func(kind watch.EventType, object runtime.Object) error {
			o, isRange := object.(*networkingv1.ServiceCIDR)
			switch {
			case !isRange:
				return fmt.Errorf("a watch of ServiceCIDRs sent a %T", object)
			case kind == watch.Deleted:
				delete(known, o.Name)
			default:
				known[o.Name] = o
			}
			return report(known)
		})
		if !errors.Is(err, allocator.ErrCompacted) {
			return err
		}
		if err := pause.For(ctx, quietPause); err != nil {
			return err
		}
	}
}

// serviceCIDRs lists the objects by name.
func (s *Store) serviceCIDRs(ctx context.Context) (map[string]*networkingv1.ServiceCIDR, string, error) {
	list, err := s.client.ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("listing ServiceCIDRs: %w", err)
	}
	known := make(map[string]*networkingv1.ServiceCIDR, len(list.Items))
	for i := range list.Items {
		known[list.Items[i].Name] = &list.Items[i]
	}
	return known, list.ResourceVersion, nil
}

func rangesOf(known map[string]*networkingv1.ServiceCIDR) (ranges []allocator.Config, unusable error) {
	oldestFirst := func(a, b *networkingv1.ServiceCIDR) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}
	for _, o := range slices.SortedFunc(maps.Values(known), oldestFirst) {
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
