package netfilter

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// listener is one of the addresses at which the backend listens. Each is for packets of one
// origin.
type listener uint8

const (
	listenerPod listener = iota + 1
	listenerNode
	listenerOutside
	// With TPROXY, packets that arrive by a bridge are translated to these.
	listenerBridgedPod
	listenerBridgedOutside
)

func (r *renderer) listeners() []listener {
	all := []listener{listenerPod, listenerNode, listenerOutside}
	if !r.Redirect {
		all = append(all, listenerBridgedPod, listenerBridgedOutside)
	}
	return all
}

func (l listener) origin() engine.Origin {
	switch l {
	case listenerPod, listenerBridgedPod:
		return engine.Pod
	case listenerNode:
		return engine.Node
	default:
		return engine.Outside
	}
}

// isTranslated reports whether destinations are translated to the address of a listener.
func (r *renderer) isTranslated(l listener) bool { return r.Redirect || l >= listenerBridgedPod }

func (r *renderer) address(l listener, f v1.IPFamily) netip.AddrPort {
	return r.listenAddr(f, uint8(l), r.isTranslated(l))
}

// translatedTo returns a prefix that holds the addresses of all listeners to which destinations
// are translated.
func (r *renderer) translatedTo(f v1.IPFamily) netip.Prefix {
	all := r.listeners()
	a := r.address(all[len(all)-1], f).Addr()
	return netip.PrefixFrom(a, a.BitLen()-8).Masked()
}
