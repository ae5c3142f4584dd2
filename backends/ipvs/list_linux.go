package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"unique"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// List implements [backends.Target]. It makes what always exists, and also reads the marks and the draining real servers,
// which it does not yield.
func (t *target) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		own, err := t.prepare(ctx)
		if err != nil {
			yield(object{}, err)
			return
		}
		if r := (object{Key: key{kind: kindRules}, Value: value{rules: t.rules.written}}); r.Value.rules != (unique.Handle[string]{}) &&
			!t.rules.Drifted(ctx) && !yield(r, nil) {
			return
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		l, err := t.list(own)
		if err != nil {
			yield(object{}, fmt.Errorf("ipvs: listing: %w", err))
			return
		}
		t.found.Take() // of an earlier listing
		for _, o := range l.found {
			if o.Key.kind == kindServer {
				t.found.Add(ipaddr.FamilyOf(o.Key.addr.Addr()), o.Key.protocol, o.Key.addr)
			}
			if !yield(o, nil) {
				return
			}
		}
	}
}

// listing is a list of the objects of the backend.
type listing struct {
	*target
	found []object
	// owned are the frontends with a virtual server of the backend at their address.
	owned map[frontend]bool
	// foreign are the marks of virtual servers with the tag of another identity.
	foreign map[uint32]bool
	// marked are the frontends by their mark in setMarks; two may have one mark only if
	// another program changed the set.
	marked map[uint32]key
}

// list reads everything but the addresses of the device.
func (t *target) list(own []netip.Addr) (*listing, error) {
	l := &listing{target: t, owned: map[frontend]bool{}, foreign: map[uint32]bool{}, marked: map[uint32]key{}}
	t.marks, t.drainer.of = marks{of: map[frontend]uint32{}, used: map[uint32]bool{}, next: t.marks.next, limit: t.marks.limit}, draining{}
	services, err := t.kernel.Services()
	if err != nil {
		return nil, err
	}
	l.usedMarks(services)
	for _, f := range t.options.Families {
		for _, s := range allSets() {
			if err := l.entries(f, s); err != nil {
				return nil, err
			}
		}
	}
	for _, a := range own {
		if !t.serves(a) {
			continue
		}
		l.add(key{kind: kindAddress, addr: netip.AddrPortFrom(a, 0)}, value{})
	}
	for i := range services {
		if err := l.service(&services[i]); err != nil {
			return nil, err
		}
	}
	if len(t.drainer.of) > 0 {
		t.startDraining()
	}
	return l, nil
}

// serves reports whether the backend has the family of an address. What is of the other one stays.
func (t *target) serves(a netip.Addr) bool {
	return slices.Contains(t.options.Families, ipaddr.FamilyOf(a))
}

// usedMarks records the marks of all virtual servers.
func (l *listing) usedMarks(services []ipvs.Service) {
	for i := range services {
		if s := &services[i]; s.Key.Mark != 0 {
			l.marks.used[s.Key.Mark] = true
			l.foreign[s.Key.Mark] = l.foreign[s.Key.Mark] || l.isOfAnother(s)
		}
	}
}

func (l *listing) add(k key, v value) { l.found = append(l.found, object{Key: k, Value: v}) }

// entries reads a set; one that does not exist has none. The entries of setInside are compared
// with the entries of setMarks, which allSets has first.
func (l *listing) entries(f v1.IPFamily, s setID) error {
	all, err := l.sets.Entries(setName(l.prefix, f, s))
	for _, e := range all {
		k := key{kind: s.kind(), set: s, protocol: e.Protocol, addr: netip.AddrPortFrom(e.Addr, e.Port), source: e.Net}
		v := value{}
		switch {
		case e.Foreign || !s.isMarked() && e.Mark != 0:
			v.wrong = true
		case s == setServers:
			l.owned[frontendOf(&k)] = true
		case s == setMarks:
			if _, twice := l.marked[e.Mark]; twice || l.foreign[e.Mark] || e.Mark&markMask != markBase {
				v.wrong = true
				break
			}
			l.marked[e.Mark] = k
			l.marks.put(frontendOf(&k), e.Mark)
		case s == setInside && (e.Mark == 0 || l.marks.of[frontendOf(&k)] != e.Mark):
			v.wrong = true
		}
		l.add(k, v)
	}
	if errors.Is(err, ipvs.ErrNotExist) {
		return nil
	}
	return err
}

// isTagged reports whether a virtual server has the tag of the identity.
func (t *target) isTagged(s *ipvs.Service) bool { return s.Config.Flags&tagMask == t.tag }

// isOfAnother reports whether a virtual server has the tag of another identity.
func (t *target) isOfAnother(s *ipvs.Service) bool {
	return !t.isTagged(s) && s.Config.Flags&tagMask != 0
}

// service reads a virtual server if it is the backend's.
func (l *listing) service(s *ipvs.Service) error {
	k := key{kind: kindServer, protocol: s.Key.Protocol, addr: s.Key.Addr}
	tagged, owned := l.isTagged(s), l.owned[frontendOf(&k)] && !l.isOfAnother(s)
	at, known := l.marked[s.Key.Mark]
	if known = known && s.Key.Mark != 0 && at.addr.Addr().Is6() == s.Key.IPv6; known {
		owned = !l.foreign[s.Key.Mark]
	}
	if !tagged && !owned {
		return nil
	}
	if s.Key.Mark != 0 {
		if !known {
			at = l.marks.orphan(s.Key.Mark, s.Key.IPv6)
		}
		k.protocol, k.addr, k.inside = at.protocol, at.addr, true
	}
	if !l.serves(k.addr.Addr()) {
		return nil
	}
	v := value{scheduler: s.Config.Scheduler, flags: s.Config.Flags &^ tagMask, timeout: s.Config.Timeout}
	if v.flags&flagPersistent == 0 {
		v.timeout = 0 // the kernel keeps the timeout of former persistence
	}
	v.wrong = s.Config.Masked || !tagged
	all, err := l.kernel.Destinations(s.Key)
	if err != nil {
		return err
	}
	l.add(k, v)
	for i := range all {
		l.destination(k, s, &all[i])
	}
	return nil
}

// destination records a real server. One of weight 0 with an upper threshold drains. One of the other
// family, a tunnel of another program, stays: github.com/moby/ipvs cannot name it.
func (l *listing) destination(server key, of *ipvs.Service, d *ipvs.Destination) {
	if d.Addr.Addr().Is6() != server.addr.Addr().Is6() {
		return
	}
	k, v := server, value{weight: d.Weight, atOnce: refusesAtZero(of.Config.Scheduler)}
	k.kind, k.real = kindDestination, d.Addr
	if isDraining(d) && l.drains(&op{Kind: backends.Remove, Key: k, Value: v}) {
		l.drainer.of.add(server, k)
		return
	}
	v.wrong = d.Upper != 0 || d.Lower != 0 || d.Forwarding != 0
	l.add(k, v)
}
