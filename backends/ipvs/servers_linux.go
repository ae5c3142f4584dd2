package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// changeServer carries out an operation on a virtual server or a real server.
func (t *target) changeServer(c *commit, o *op) error {
	isServer, server := o.Key.kind == kindServer, serverKey(&o.Key)
	goes, drainsNone := c.servers[server]
	if goes && !isServer {
		return nil // the kernel removes it with its server
	}
	drains := !drainsNone && t.drains(o)
	if err := t.kernel.Do(t.request(o, drains)); err != nil {
		return t.refusal(o, err)
	}
	switch {
	case drains:
		t.drainer.of.add(server, o.Key)
		t.startDraining()
	case !isServer:
		delete(t.drainer.of[server], o.Key)
	case drainsNone:
		return t.endDraining(server, goes)
	}
	return nil
}

// endDraining removes the draining real servers of a virtual server, which have gone with it if it has gone.
func (t *target) endDraining(server key, gone bool) error {
	for k := range t.drainer.of[server] {
		if o := (op{Kind: backends.Remove, Key: k}); !gone {
			if err := t.kernel.Do(t.request(&o, false)); err != nil {
				return t.refusal(&o, err)
			}
		}
	}
	delete(t.drainer.of, server)
	return nil
}

// serverKey returns the key of the virtual server of a real server.
func serverKey(k *key) key {
	s := *k
	s.kind, s.real = kindServer, netip.AddrPort{}
	return s
}

// request returns the request of an operation. A real server that drains is not removed.
func (t *target) request(o *op, drains bool) ipvs.Op {
	r := ipvs.Op{Verb: [...]ipvs.Verb{backends.Add: ipvs.Add, backends.Replace: ipvs.Change, backends.Remove: ipvs.Remove}[o.Kind], Key: t.marks.server(&o.Key)}
	if o.Key.kind == kindServer {
		r.Config = ipvs.ServiceConfig{Scheduler: o.Value.scheduler, Flags: o.Value.flags | t.tag, Timeout: o.Value.timeout}
		return r
	}
	r.Destination.Addr = o.Key.real
	switch {
	case drains:
		r.Verb, r.Destination.Upper = ipvs.Change, t.deadline()
	case o.Kind != backends.Remove:
		r.Destination.Weight = o.Value.weight
		if t.drainer.of[serverKey(&o.Key)][o.Key] {
			r.Verb = ipvs.Change
		}
	}
	return r
}

// refusal explains the error of an operation. Without an errno, its outcome is unknown. If it failed because another program has the virtual server, the state
// is known: reading everything again would not help. Otherwise the virtual server is the
// backend's, and was not listed: changes in other namespaces can make the kernel skip some.
func (t *target) refusal(o *op, err error) error {
	if _, isRefusal := errors.AsType[unix.Errno](err); !isRefusal {
		return lost(err)
	}
	if o.Kind != backends.Add || o.Key.kind != kindServer || !errors.Is(err, unix.EEXIST) {
		return explain(err)
	}
	all, listErr := t.kernel.Services()
	if listErr != nil {
		return lost(listErr)
	}
	server := t.marks.server(&o.Key)
	if slices.ContainsFunc(all, func(s ipvs.Service) bool { return s.Key == server && !t.isTagged(&s) }) {
		return fmt.Errorf("ipvs: another program has the virtual server: %w", err)
	}
	return lost(err)
}

// lost explains an error after which it is unknown what has been carried out.
func lost(err error) error { return fmt.Errorf("ipvs: %w: %w", proxy.ErrDataplaneLost, err) }

// explain says what the error of a change means that the kernel has refused.
func explain(err error) error {
	switch {
	case errors.Is(err, ipvs.ErrNotExist), errors.Is(err, unix.ENODEV): // another program removed a set or the device
		return lost(err)
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("ipvs: %w: %w", backends.ErrConflict, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("ipvs: %w: needs CAP_NET_ADMIN in the initial user namespace: %w", backends.ErrUnavailable, err)
	}
	return fmt.Errorf("ipvs: %w", err)
}
