package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/proxy/manifest"
)

// clusterIPs gives Services without ClusterIP one of its ranges. A file keeps who has which,
// also while the program does not run, until the Service is deleted. The file is opened
// when the first Service needs it; the addresses of Services that were deleted while the program
// did not run are freed after the first complete pass.
//
// It is the Handler of a manifest.Source, between that and another one.
type clusterIPs struct {
	manifest.Handler
	log    logr.Logger
	path   string
	ranges []netip.Prefix
	// services has the Services with the addresses that files name, which are not allocated: none
	// for a Service that gets its addresses here.
	services map[types.NamespacedName][]netip.Addr
	store    *filestore.Store
	pool     *allocator.Pool // nil until a Service needs it
}

// assign sets the ClusterIPs of a Service that has none.
func (c *clusterIPs) assign(ctx context.Context, s *v1.Service) error {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if s.Spec.ClusterIP != "" {
		c.remember(name, append(s.Spec.ClusterIPs, s.Spec.ClusterIP))
		return c.release(ctx, name)
	}
	c.remember(name, nil)
	kinds, err := c.kinds(&s.Spec)
	if err != nil {
		return err
	}
	if err := c.open(ctx); err != nil {
		return fmt.Errorf("allocating a ClusterIP: %w", err)
	}
	if err := c.pool.SetRanges(c.configs()...); err != nil {
		return fmt.Errorf("-service-cidr: %w", err)
	}
	held, wanted := c.split(name, kinds)
	message := "ClusterIP kept"
	if len(wanted) > 0 {
		message = "ClusterIP allocated"
		more, err := c.pool.Allocate(ctx, owner(name), wanted...)
		if err != nil {
			return fmt.Errorf("allocating a ClusterIP from %v: %w", c.ranges, err)
		}
		held = append(held, more...)
	}
	slices.SortFunc(held, func(a, b allocator.Claim) int {
		return cmp.Compare(slices.Index(kinds, a.Key.Kind()), slices.Index(kinds, b.Key.Kind()))
	})
	s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, nil
	for _, claim := range held {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, claim.Key.String())
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, family(claim.Key.Kind()))
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	c.log.Info(message, "service", name.String(), "addresses", s.Spec.ClusterIPs, "allocations", c.path)
	return nil
}

// kinds returns which addresses a Service gets, the first one first.
func (c *clusterIPs) kinds(s *v1.ServiceSpec) (kinds []allocator.Kind, err error) {
	ours := c.ours()
	if len(ours) == 0 {
		return nil, errors.New("without spec.clusterIP it is not served: set it, or give -service-cidr, from which one is allocated")
	}
	for _, f := range s.IPFamilies {
		k := kindOf(f)
		if !slices.Contains(ours, k) {
			return nil, fmt.Errorf("spec.ipFamilies needs %s, of which -service-cidr has no range", f)
		}
		kinds = append(kinds, k)
	}
	policy := v1.IPFamilyPolicySingleStack
	if s.IPFamilyPolicy != nil {
		policy = *s.IPFamilyPolicy
	}
	if policy == v1.IPFamilyPolicyRequireDualStack && len(ours) < 2 {
		return nil, errors.New("spec.ipFamilyPolicy needs both families, and -service-cidr has ranges of one")
	}
	if policy != v1.IPFamilyPolicySingleStack {
		others := slices.DeleteFunc(ours, func(k allocator.Kind) bool { return slices.Contains(kinds, k) })
		return append(kinds, others...), nil
	}
	if len(kinds) == 0 {
		return ours[:1], nil
	}
	return kinds, nil
}

// ours returns the kinds of addresses that the ranges have.
func (c *clusterIPs) ours() (kinds []allocator.Kind) {
	for _, r := range c.ranges {
		if k := allocator.AddrKey(r.Addr()).Kind(); !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// split returns the claims that a Service has already, and what is missing.
func (c *clusterIPs) split(name types.NamespacedName, kinds []allocator.Kind) (held []allocator.Claim, missing []allocator.Request) {
	for _, k := range kinds {
		i := slices.IndexFunc(c.pool.Claims(), func(claim allocator.Claim) bool {
			return claim.Owner == owner(name) && claim.Key.Kind() == k &&
				slices.ContainsFunc(c.ranges, func(r netip.Prefix) bool { return r.Contains(claim.Key.Addr()) })
		})
		if i < 0 {
			missing = append(missing, allocator.Request{Kind: k})
		} else {
			held = append(held, c.pool.Claims()[i])
		}
	}
	return held, missing
}

// open opens the file.
func (c *clusterIPs) open(ctx context.Context) error {
	if c.pool != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return err
	}
	store, err := filestore.Open(c.path)
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	pool, err := allocator.NewPool(store, allocator.PoolOptions{})
	if err == nil {
		err = errors.Join(store.Create(ctx), pool.Sync(ctx))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", c.path, err), store.Close())
	}
	c.store, c.pool = store, pool
	return nil
}

// close closes the file. Nothing is allocated afterwards.
func (c *clusterIPs) close() error {
	if c.pool == nil {
		return nil
	}
	c.pool = nil
	return c.store.Close()
}

// configs returns the ranges without the addresses that files name.
func (c *clusterIPs) configs() (all []allocator.Config) {
	var exclude []allocator.Block
	for _, addresses := range c.services {
		for _, a := range addresses {
			exclude = append(exclude, allocator.Block{First: allocator.AddrKey(a), Last: allocator.AddrKey(a)})
		}
	}
	for _, r := range c.ranges {
		config := allocator.Config{Prefix: r, Exclude: exclude}
		if r.Addr().Is6() {
			config.Limit = 1 << 16 // as in Kubernetes
		}
		all = append(all, config)
	}
	return all
}

// remember records a Service and the addresses that its file names. The tracker reports wrong ones.
func (c *clusterIPs) remember(name types.NamespacedName, texts []string) {
	var addresses []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil && a.Zone() == "" {
			addresses = append(addresses, a)
		}
	}
	if c.services == nil {
		c.services = map[types.NamespacedName][]netip.Addr{}
	}
	c.services[name] = addresses
}

// release frees what a Service has got.
func (c *clusterIPs) release(ctx context.Context, name types.NamespacedName) error {
	if c.pool == nil {
		return nil
	}
	var claims []allocator.Claim
	for _, claim := range c.pool.Claims() {
		if claim.Owner == owner(name) {
			claims = append(claims, claim)
		}
	}
	if len(claims) == 0 {
		return nil
	}
	return c.pool.Release(ctx, claims...)
}

// UpdateService passes a Service on. One without ClusterIP needs no address any more; observed
// frees what it had.
func (c *clusterIPs) UpdateService(s *v1.Service) {
	if s.Spec.ClusterIP == v1.ClusterIPNone || s.Spec.Type == v1.ServiceTypeExternalName {
		delete(c.services, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	}
	c.Handler.UpdateService(s)
}

// freeTimeout is how long the program waits for the file when it frees addresses.
const freeTimeout = 10 * time.Second

// DeleteService releases the ClusterIPs of a Service and passes the deletion on.
func (c *clusterIPs) DeleteService(name types.NamespacedName) {
	ctx, cancel := context.WithTimeout(context.Background(), freeTimeout)
	defer cancel()
	delete(c.services, name)
	if err := c.release(ctx, name); err != nil {
		c.log.Error(err, "ClusterIP not released", "service", name.String(), "allocations", c.path)
	}
	c.Handler.DeleteService(name)
}

// observed frees the addresses of Services that do not exist. It does so only after a pass that could
// read everything: what could not be read may have a Service. Without any Service the path may be
// wrong, and nothing needs an address.
func (c *clusterIPs) observed(s manifest.Summary) {
	if c.pool == nil || s.Errors > 0 || s.Services == 0 {
		return
	}
	owners := map[allocator.Owner]struct{}{}
	for name, addresses := range c.services {
		if len(addresses) == 0 {
			owners[owner(name)] = struct{}{}
		}
	}
	var unused []allocator.Claim
	for _, claim := range c.pool.Claims() {
		if _, isUsed := owners[claim.Owner]; !isUsed {
			unused = append(unused, claim)
		}
	}
	if len(unused) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), freeTimeout)
	defer cancel()
	if err := c.pool.Release(ctx, unused...); err != nil {
		c.log.Error(err, "ClusterIPs of deleted Services not released", "allocations", c.path)
		return
	}
	for _, claim := range unused {
		c.log.Info("ClusterIP of a deleted Service released", "owner", string(claim.Owner), "address", claim.Key.String(), "allocations", c.path)
	}
}

// owner names a Service in the file.
func owner(name types.NamespacedName) allocator.Owner {
	return allocator.Owner("services/" + name.String())
}

// family returns the family of addresses of a kind.
func family(k allocator.Kind) v1.IPFamily {
	if k == allocator.IPv6 {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

// kindOf returns the kind of the addresses of a family.
func kindOf(f v1.IPFamily) allocator.Kind {
	if f == v1.IPv6Protocol {
		return allocator.IPv6
	}
	return allocator.IPv4
}
