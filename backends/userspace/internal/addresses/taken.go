package addresses

import (
	"context"
	"fmt"
	"sync"

	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/proxy"
)

// taken are the node ports at which another program listens, or which the system denies. Their
// service ports are served at all other frontends.
type taken struct {
	mu  sync.Mutex
	all map[Key]error
}

func (t *taken) put(k Key, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[Key]error{}
	}
	t.all[k] = err
}

func (t *taken) drop(k Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, k)
}

func (t *taken) has(k Key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, is := t.all[k]
	return is
}

// isTaken reports whether an error of a listener is about its address and port alone.
func isTaken(err error) bool { return neterr.Of(err) == neterr.InUse || neterr.IsDenied(err) }

// canListen reports whether a node port that was taken is free now.
func (c *Capture) canListen(ctx context.Context, k Key) bool {
	socket, err := k.bind(ctx)
	return err == nil && socket.Close() == nil
}

// CheckNode implements [backends.NodeChecker]: it returns the node ports that are taken. They are
// tried again at each resync.
func (c *Capture) CheckNode(s proxy.Snapshot) (all []*proxy.Problem) {
	c.taken.mu.Lock()
	defer c.taken.mu.Unlock()
	for k, err := range c.taken.all {
		p := &proxy.Problem{Kind: "Node", Field: fmt.Sprintf("node port %v/%s", k.at(), k.protocol), Err: err}
		if n := s.Node(); n != nil {
			p.Name = n.Name
		}
		all = append(all, p)
	}
	return all
}
