package addresses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/proxy"
)

// refusals are objects that could not be made or removed, with the reasons.
type refusals struct {
	mu  sync.Mutex
	all map[Key]error
}

func (r *refusals) put(k Key, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[Key]error{}
	}
	r.all[k] = err
}

func (r *refusals) drop(k Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, k)
}

func (r *refusals) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.all)
}

// failure returns the reasons as one error, nil if there are none.
func (r *refusals) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(slices.Collect(maps.Values(r.all))...)
}

func (r *refusals) has(k Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, is := r.all[k]
	return is
}

// isTaken reports whether an error of a listener is about its address and port alone.
func isTaken(err error) bool { return neterr.Of(err) == neterr.InUse || neterr.IsDenied(err) }

// canListen reports whether a node port that was taken is free now.
func (c *Capture) canListen(ctx context.Context, k Key) bool {
	socket, err := c.bind(ctx, k)
	return err == nil && socket.Close() == nil
}

// CheckNode is CheckNode of [proxy.Abilities]: it returns the node ports that are taken, and the
// addresses that cannot be removed. Both are tried again at each resync.
func (c *Capture) CheckNode(s proxy.Snapshot) (all []*proxy.Problem) {
	for _, r := range []*refusals{&c.taken, &c.left} {
		all = r.problems(s, all)
	}
	return all
}

func (r *refusals) problems(s proxy.Snapshot, all []*proxy.Problem) []*proxy.Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, err := range r.all {
		p := &proxy.Problem{Kind: "Node", Field: fmt.Sprintf("node port %v/%s", k.at(), k.protocol), Reason: proxy.NodeSetting, Err: err}
		if k.isAddress() {
			p.Field = fmt.Sprintf("address %v", k.addr)
		}
		if n := s.Node(); n != nil {
			p.Name = n.Name
		}
		all = append(all, p)
	}
	return all
}
