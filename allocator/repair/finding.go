package repair

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/internal/enum"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// Use is an address or a port in an object, such as a field of a Service.
type Use struct {
	// Owner is the object.
	Owner allocator.Owner
	// Text is the address or port as the object spells it, without space around it. As in the proxy, leading zeros of IPv4 have
	// no meaning: 010.096.0.11 is 10.96.0.11, and [NonCanonical].
	Text string
}

// Uses are the uses of one Service, by the pools that they come from.
type Uses struct {
	// ClusterIPs are from its spec, LoadBalancerIPs from its status. NodePorts are the node ports of its
	// ports, and its health check node port.
	ClusterIPs, LoadBalancerIPs, NodePorts []Use
	// ExternalIPs come from no pool: users choose them. One may be in the range of a pool.
	ExternalIPs []Use
}

// ServiceUses returns the uses of a Service. Their owner is namespace/name.
func ServiceUses(s *v1.Service) (u Uses) {
	add := func(to *[]Use, text string) {
		if text = strings.TrimSpace(text); text != "" && text != v1.ClusterIPNone {
			*to = append(*to, Use{Owner: allocator.Owner(s.Namespace + "/" + s.Name), Text: text})
		}
	}
	for _, ip := range s.Spec.ClusterIPs {
		add(&u.ClusterIPs, ip)
	}
	if !slices.Contains(s.Spec.ClusterIPs, s.Spec.ClusterIP) { // Objects from before dual stack have no list.
		add(&u.ClusterIPs, s.Spec.ClusterIP)
	}
	for i := range s.Status.LoadBalancer.Ingress {
		add(&u.LoadBalancerIPs, s.Status.LoadBalancer.Ingress[i].IP)
	}
	for _, ip := range s.Spec.ExternalIPs {
		add(&u.ExternalIPs, ip)
	}
	ports := []int32{s.Spec.HealthCheckNodePort}
	for i := range s.Spec.Ports {
		ports = append(ports, s.Spec.Ports[i].NodePort)
	}
	slices.Sort(ports)
	for _, port := range slices.Compact(ports) {
		if port != 0 {
			add(&u.NodePorts, strconv.Itoa(int(port)))
		}
	}
	return u
}

// parse reads the text of a use.
func parse(text string) (allocator.Key, error) {
	k, err := allocator.ParseKey(text)
	if err != nil {
		var a netip.Addr
		a, err = ipaddr.Parse(text)
		k = allocator.AddrKey(a)
	}
	return k, err
}

// ErrNoOwners says that the list of owners is empty. See [Options].Force.
var ErrNoOwners = errors.New("the list of owners is empty, which is likely a mistake")

// TooManyError says that a pass would have taken too many claims from their owners,
// and has taken none. See [Options].Force.
type TooManyError struct {
	// Removals is how many it would have taken, Most how many it may take.
	Removals, Most int
}

// Error names both numbers.
func (e *TooManyError) Error() string {
	return fmt.Sprintf("%d claims would be taken from their owners, more than %d: check whether the list of owners is complete", e.Removals, e.Most)
}

// Problem is a kind of difference between store and owners.
type Problem uint8

// The problems.
const (
	// Missing: used and not held, or only reserved. Mended by a claim.
	Missing Problem = iota + 1
	// Orphaned: held and not used, or a reservation that has ended. Mended by
	// freeing the key.
	Orphaned
	// WrongOwner: held for an owner that does not use it, and used by another.
	// Mended by giving the key to that one.
	WrongOwner
	// Duplicate: used by an owner although another one holds and uses it, too. A
	// change of the store cannot mend that: one of the objects must change.
	Duplicate
	// OutOfRange: used or held, and in no range. A range may be missing by mistake,
	// so this is only reported.
	OutOfRange
	// NonCanonical: not spelled canonically. The key is the same, but other programs
	// may compare spellings.
	NonCanonical
	// Invalid: neither an address nor a port. Since it may mean any key of its
	// owner, the claims of that owner stay.
	Invalid
)

// String names the problem.
func (p Problem) String() string {
	return enum.Name(p, "none", "missing", "orphaned", "wrong owner", "duplicate", "out of range", "non-canonical", "invalid")
}

// Finding is one difference between store and owners.
type Finding struct {
	// Problem is the kind of the difference.
	Problem Problem
	// Key is the key; the zero Key if Text is no key.
	Key allocator.Key
	// Owner uses the key; if it is unused, Owner holds it.
	Owner allocator.Owner
	// Holder holds the key in the store, if that is not Owner.
	Holder allocator.Owner
	// Text is the spelling of the owner.
	Text string
	// Mended says that the pass changed the store. If it is false for a problem that passes mend,
	// another process changed the claim first; the next pass tries again.
	Mended bool
}

// String describes the finding in one line, with control characters escaped.
func (f Finding) String() string {
	what := f.Text
	if what == "" {
		what = f.Key.String()
	}
	s := fmt.Sprintf("%v: %s of %s", f.Problem, escaped(what), escaped(string(f.Owner)))
	if f.Holder != "" {
		s += ", held by " + escaped(string(f.Holder))
	}
	if f.Mended {
		s += " (mended)"
	}
	return s
}

func escaped(text string) string {
	text = strconv.Quote(text)
	return text[1 : len(text)-1]
}
