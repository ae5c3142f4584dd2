package netfilter

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/host"
)

// routing is the rules and routes by which packets get to the listeners.
type routing interface {
	state(v1.IPFamily) (routingState, error)
	// add adds what is missing, and removes foreign rules and routes.
	add(v1.IPFamily) error
	remove(v1.IPFamily) error
}

// routingState says how much of a routing exists.
type routingState uint8

const (
	routingAbsent routingState = iota
	routingPartial
	routingComplete
)

// routing returns the routing of the capture.
func (r *renderer) routing() routing {
	byMark := &markRoutes{Config: r.Config, handle: r.Sockets.Netlink()}
	toListeners := &listenerRoutes{LocalRoutes: r.LocalRoutes(), renderer: r}
	if r.redirect {
		return only{toListeners, []routing{byMark}}
	}
	return allOf{byMark, toListeners}
}

// only is a routing that also removes the routing of other captures, which an earlier process
// of the identity may have left.
type only struct {
	routing
	others []routing
}

func (o only) state(f v1.IPFamily) (routingState, error) {
	state, err := o.routing.state(f)
	for _, other := range o.others {
		s, oerr := other.state(f)
		if oerr != nil {
			return routingAbsent, oerr
		}
		if s != routingAbsent {
			state = routingPartial
		}
	}
	return state, err
}

func (o only) add(f v1.IPFamily) error {
	if err := o.routing.add(f); err != nil {
		return err
	}
	return o.removeOthers(f)
}

func (o only) remove(f v1.IPFamily) error {
	if err := o.routing.remove(f); err != nil {
		return err
	}
	return o.removeOthers(f)
}

func (o only) removeOthers(f v1.IPFamily) error {
	for _, other := range o.others {
		state, err := other.state(f)
		if err == nil && state != routingAbsent {
			err = other.remove(f)
		}
		if err != nil {
			return fmt.Errorf("removing the routing of another capture: %w", err)
		}
	}
	return nil
}

// allOf is a routing of several parts.
type allOf []routing

func (a allOf) state(f v1.IPFamily) (routingState, error) {
	all := map[routingState]bool{}
	for _, r := range a {
		s, err := r.state(f)
		if err != nil {
			return routingAbsent, err
		}
		all[s] = true
	}
	for s := range all {
		if len(all) == 1 {
			return s, nil
		}
	}
	return routingPartial, nil
}

func (a allOf) add(f v1.IPFamily) error {
	for _, r := range a {
		if err := r.add(f); err != nil {
			return err
		}
	}
	return nil
}

func (a allOf) remove(f v1.IPFamily) error {
	var errs []error
	for _, r := range a {
		errs = append(errs, r.remove(f))
	}
	return errors.Join(errs...)
}

// listenerRoutes are local routes to the addresses of listeners to which destinations are
// translated.
type listenerRoutes struct {
	*host.LocalRoutes
	*renderer
}

func (l *listenerRoutes) want(f v1.IPFamily) map[netip.Prefix]bool {
	all := map[netip.Prefix]bool{}
	for _, x := range l.listeners() {
		if l.isTranslated(x) {
			a := l.address(x, f).Addr()
			all[netip.PrefixFrom(a, a.BitLen())] = true
		}
	}
	return all
}

func (l *listenerRoutes) state(f v1.IPFamily) (routingState, error) {
	list, err := l.List(f)
	if err != nil {
		return routingAbsent, err
	}
	want, state := l.want(f), routingComplete
	for i := range list {
		if list[i].Type != unix.RTN_LOCAL || !want[host.Destination(&list[i])] {
			state = routingPartial
		}
	}
	switch {
	case len(list) == 0:
		return routingAbsent, nil
	case len(list) != len(want):
		return routingPartial, nil
	}
	return state, nil
}

func (l *listenerRoutes) add(f v1.IPFamily) error {
	want := l.want(f)
	for p := range want {
		if err := l.Put(p); err != nil {
			return err
		}
	}
	list, err := l.List(f)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Type == unix.RTN_LOCAL && want[host.Destination(&list[i])] {
			continue
		}
		if err := l.DeleteListed(list[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *listenerRoutes) remove(f v1.IPFamily) error {
	list, err := l.List(f)
	if err != nil {
		return err
	}
	return l.DeleteListed(list...)
}
