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

// Ranges gives what the ServiceCIDR objects describe, the oldest first. A range whose
// object is being deleted or is not ready is draining. An error tells of objects that
// cannot be used, such as an IPv6 prefix shorter than /64; the ranges of all others
// come with it.
func (s *Store) Ranges(ctx context.Context) ([]allocator.Config, error) {
	known, _, err := s.serviceCIDRs(ctx)
	if err != nil {
		return nil, err
	}
	return rangesOf(known)
}

// Ranges of ServiceCIDR objects at one time, as [Store.WatchRanges] gives them.
type Ranges struct {
	Configs []allocator.Config
	// Unusable tells of objects that describe no range that could be used; nil
	// if there are none.
	Unusable error
}

// WatchRanges gives the ranges as they are now, and again whenever that has changed, for
// [allocator.Pool.SetRanges]. It goes on until ctx ends or the loop does. An error is the
// last thing that it gives: it can be called again.
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

func (s *Store) watchRanges(ctx context.Context, tell func(map[string]*networkingv1.ServiceCIDR) error) error {
	for {
		known, version, err := s.serviceCIDRs(ctx)
		if err != nil {
			return err
		}
		if err := tell(known); err != nil {
			return err
		}
		err = follow(ctx, s.client.ServiceCIDRs().Watch, version, func(kind watch.EventType, object runtime.Object) error {
			o, isRange := object.(*networkingv1.ServiceCIDR)
			switch {
			case !isRange:
				return fmt.Errorf("a watch of ServiceCIDRs tells of a %T", object)
			case kind == watch.Deleted:
				delete(known, o.Name)
			default:
				known[o.Name] = o
			}
			return tell(known)
		})
		if !errors.Is(err, allocator.ErrCompacted) {
			return err
		}
		if err := pause.For(ctx, silence); err != nil {
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

// configOf reads a prefix that a range can be made of.
func configOf(text string) (allocator.Config, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return allocator.Config{}, err
	}
	c := allocator.Config{Prefix: prefix}
	_, err = allocator.NewRange(c)
	return c, err
}

// isReady reports whether addresses may be allocated from an object's ranges. One that no
// controller has looked at yet is ready.
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
