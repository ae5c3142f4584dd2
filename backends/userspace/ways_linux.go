package userspace

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// way is what routing must know for packets to come to the backend's sockets.
type way interface {
	state(nfnetlink.Family) (routesState, error)
	// add makes what is missing, and takes away what is too much.
	add(nfnetlink.Family) error
	remove(nfnetlink.Family) error
}

// instead is a way that also removes the routes of other captures, which an earlier process
// of the identity may have left.
type instead struct {
	way
	others []way
}

func (i instead) state(fam nfnetlink.Family) (routesState, error) {
	state, err := i.way.state(fam)
	for _, o := range i.others {
		s, oerr := o.state(fam)
		if oerr != nil {
			return routesAbsent, oerr
		}
		if s != routesAbsent {
			state = routesPartial
		}
	}
	return state, err
}

func (i instead) add(fam nfnetlink.Family) error {
	if err := i.way.add(fam); err != nil {
		return err
	}
	return i.removeOthers(fam)
}

func (i instead) remove(fam nfnetlink.Family) error {
	if err := i.way.remove(fam); err != nil {
		return err
	}
	return i.removeOthers(fam)
}

func (i instead) removeOthers(fam nfnetlink.Family) error {
	for _, o := range i.others {
		state, err := o.state(fam)
		if err == nil && state != routesAbsent {
			err = o.remove(fam)
		}
		if err != nil {
			return fmt.Errorf("routes of another capture: %w", err)
		}
	}
	return nil
}

// together are ways of which all are needed.
type together []way

func (t together) state(fam nfnetlink.Family) (routesState, error) {
	all := map[routesState]bool{}
	for _, w := range t {
		s, err := w.state(fam)
		if err != nil {
			return routesAbsent, err
		}
		all[s] = true
	}
	for s := range all {
		if len(all) == 1 {
			return s, nil
		}
	}
	return routesPartial, nil
}

func (t together) add(fam nfnetlink.Family) error {
	for _, w := range t {
		if err := w.add(fam); err != nil {
			return err
		}
	}
	return nil
}

func (t together) remove(fam nfnetlink.Family) error {
	var errs []error
	for _, w := range t {
		errs = append(errs, w.remove(fam))
	}
	return errors.Join(errs...)
}

// doorRoutes make the addresses of the doors local, so that packets whose
// destination has been translated to them come in.
type doorRoutes struct {
	*localRoutes
	options *Options
}

func (d *doorRoutes) want(fam nfnetlink.Family) map[netip.Prefix]bool {
	all := map[netip.Prefix]bool{}
	for _, x := range doors(d.options.Capture) {
		if x.isTranslated(d.options.Capture) {
			a := x.address(d.options, fam).Addr()
			all[netip.PrefixFrom(a, a.BitLen())] = true
		}
	}
	return all
}

func (d *doorRoutes) state(fam nfnetlink.Family) (routesState, error) {
	list, err := d.list(fam)
	if err != nil {
		return routesAbsent, err
	}
	want, state := d.want(fam), routesComplete
	for i := range list {
		if list[i].Type != unix.RTN_LOCAL || !want[destination(&list[i])] {
			state = routesPartial
		}
	}
	switch {
	case len(list) == 0:
		return routesAbsent, nil
	case len(list) != len(want):
		return routesPartial, nil
	}
	return state, nil
}

func (d *doorRoutes) add(fam nfnetlink.Family) error {
	want := d.want(fam)
	for p := range want {
		if err := d.put(p, unix.RTN_LOCAL, netip.Addr{}); err != nil {
			return err
		}
	}
	list, err := d.list(fam)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Type == unix.RTN_LOCAL && want[destination(&list[i])] {
			continue
		}
		if err := d.drop(list[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d *doorRoutes) remove(fam nfnetlink.Family) error {
	list, err := d.list(fam)
	if err != nil {
		return err
	}
	return d.drop(list...)
}
