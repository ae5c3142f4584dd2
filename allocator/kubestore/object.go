package kubestore

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/allocator"
)

// The annotations of the objects that this store writes.
const (
	annotationToken   = "allocator.vipkit.github.io/token"
	annotationSince   = "allocator.vipkit.github.io/since"
	annotationExpires = "allocator.vipkit.github.io/expires"
)

// plainOwners is the resource of owners that are only a name.
const plainOwners = "owners"

// parentOf returns the parentRef of an owner.
func parentOf(owner allocator.Owner) (*networkingv1.ParentReference, error) {
	parts := strings.Split(string(owner), "/")
	ref := &networkingv1.ParentReference{Name: parts[len(parts)-1]}
	switch len(parts) {
	case 1:
		ref.Resource = plainOwners
	case 2:
		ref.Resource = parts[0]
	case 3:
		ref.Resource, ref.Namespace = parts[0], parts[1]
	case 4:
		ref.Group, ref.Resource, ref.Namespace = parts[0], parts[1], parts[2]
	}
	if ref.Resource == "" || ref.Name == "" || strings.Contains(string(owner), "%") || ownerOf(ref) != owner {
		return nil, fmt.Errorf("%w owner %q: want a plain name, or one like services/default/web", allocator.ErrInvalid, owner)
	}
	return ref, nil
}

// ownerOf returns the owner that a parentRef names.
func ownerOf(ref *networkingv1.ParentReference) allocator.Owner {
	if ref == nil {
		return ""
	}
	var parts []string
	switch {
	case ref.Group != "":
		parts = []string{ref.Group, ref.Resource, ref.Namespace, ref.Name}
	case ref.Namespace != "":
		parts = []string{ref.Resource, ref.Namespace, ref.Name}
	case ref.Resource != plainOwners:
		parts = []string{ref.Resource, ref.Name}
	default:
		parts = []string{ref.Name}
	}
	return allocator.Owner(strings.Join(parts, "/"))
}

// newObject returns the object of a claim, as it is before the API server has seen it.
func (s *Store) newObject(c allocator.Claim) (*networkingv1.IPAddress, error) {
	if k := c.Key.Kind(); k != allocator.IPv4 && k != allocator.IPv6 {
		return nil, fmt.Errorf("%w key: %v %v: an IPAddress object holds only addresses", allocator.ErrInvalid, k, c.Key)
	}
	parent, err := parentOf(c.Owner)
	if err != nil {
		return nil, err
	}
	o := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: c.Key.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: c.Key.Kind().String(),
				networkingv1.LabelManagedBy:       s.managedBy,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: parent},
	}
	annotate(o, c)
	return o, nil
}

// annotate writes token and times of a claim into an object.
func annotate(o *networkingv1.IPAddress, c allocator.Claim) {
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[annotationToken] = strconv.FormatUint(c.Token, 10)
	o.Annotations[annotationSince] = c.Since.Format(time.RFC3339Nano)
	delete(o.Annotations, annotationExpires)
	if !c.IsBound() {
		o.Annotations[annotationExpires] = c.Expires.Format(time.RFC3339Nano)
	}
}

// claimOf reads an object of any program. If an annotation is missing or unreadable, the
// claim is bound, so that it is not freed by mistake.
func claimOf(o *networkingv1.IPAddress) (allocator.Claim, error) {
	key, err := allocator.ParseKey(o.Name)
	if err != nil || key.Kind() == allocator.Port {
		return allocator.Claim{}, fmt.Errorf("IPAddress %q: its name is not an address", o.Name)
	}
	version, err := versionOf(o.ResourceVersion)
	if err != nil {
		return allocator.Claim{}, fmt.Errorf("IPAddress %s: %w", o.Name, err)
	}
	c := allocator.Claim{Key: key, Owner: ownerOf(o.Spec.ParentRef), Token: tokenOf(o), Version: version}
	if c.Since, err = time.Parse(time.RFC3339Nano, o.Annotations[annotationSince]); err != nil {
		c.Since = o.CreationTimestamp.Time
	}
	if c.Expires, err = time.Parse(time.RFC3339Nano, o.Annotations[annotationExpires]); err != nil {
		c.Expires = time.Time{}
	}
	c.Since, c.Expires = c.Since.UTC(), c.Expires.UTC()
	return c, nil
}

// tokenOf returns the token of an allocation. Objects of other programs have none, so it is
// the hash of their UID.
func tokenOf(o *networkingv1.IPAddress) uint64 {
	token, err := strconv.ParseUint(o.Annotations[annotationToken], 10, 64)
	if err == nil {
		return token
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(o.UID)) // never fails
	return max(1, h.Sum64())
}

// resourceVersion is a version as the API server writes it.
func resourceVersion(v allocator.Version) string { return strconv.FormatUint(uint64(v), 10) }

// versionOf reads a resourceVersion, which API servers keep comparable as a number.
func versionOf(text string) (allocator.Version, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is not a number: %w", text, err)
	}
	return allocator.Version(n), nil
}
