package kubestore

import (
	"sync"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/vipkit/vipkit/allocator"
)

// maxRecent is how many objects are remembered, of about a kilobyte each.
const maxRecent = 4096

// recent are the objects that this store wrote last. A change has the object's version as
// its precondition, which the API server checks; so an outdated object does no harm here,
// and one that is current need not be read again.
type recent struct {
	mu      sync.Mutex
	objects map[allocator.Key]*networkingv1.IPAddress
}

// get returns the object of a claim in the version of the claim, or nil.
func (r *recent) get(c allocator.Claim) *networkingv1.IPAddress {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.objects[c.Key]
	if o == nil || o.ResourceVersion != resourceVersion(c.Version) {
		return nil
	}
	return o
}

// put remembers an object; nil removes it.
func (r *recent) put(k allocator.Key, o *networkingv1.IPAddress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o == nil {
		delete(r.objects, k)
		return
	}
	if r.objects == nil || len(r.objects) >= maxRecent {
		r.objects = map[allocator.Key]*networkingv1.IPAddress{}
	}
	r.objects[k] = o
}
