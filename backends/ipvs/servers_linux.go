package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// commitServers changes virtual servers and real servers, and returns the errors of those that failed. The
// kernel carries out operations after one that fails.
func (t *target) commitServers(ctx context.Context, run []op) (bad map[int]error, err error) {
	list := make([]ipvs.Op, 0, len(run))
	from := make([]int, 0, len(run)) // indexes in run
	removed := removedServers(run)
	for i := range run {
		o := &run[i]
		if o.Key.kind == kindDestination && o.Kind == backends.Remove && removed[serverKey(&o.Key)] {
			continue // the kernel removes it with its server
		}
		list, from = append(list, t.request(o)), append(from, i)
		if o.Kind != backends.Remove && endsDraining(o) {
			server := t.marks.server(&o.Key)
			for k := range t.drainer.of[server] {
				list, from = append(list, ipvs.DelDestination(server, k.real)), append(from, i)
			}
		}
	}
	failed, err := t.kernel.Do(ctx, list)
	if err != nil {
		return nil, lost(err)
	}
	bad = make(map[int]error, len(failed))
	for i := range failed {
		f := &failed[i]
		at := from[f.Index]
		if bad[at] = t.inTheWay(&run[at], f); bad[at] == nil {
			bad[at] = explain(f)
		}
	}
	t.record(run, bad)
	return bad, nil
}

// inTheWay returns an error if an operation failed because the virtual server exists. If another
// program has it, the state is known: reading everything again would not help. Otherwise it is the
// backend's, and was not listed: changes in other namespaces can make the kernel skip some.
func (t *target) inTheWay(o *op, err error) error {
	if o.Kind != backends.Add || o.Key.kind != kindServer || !errors.Is(err, unix.EEXIST) {
		return nil
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

// endsDraining reports whether the value of a virtual server lets none of its real servers drain.
func endsDraining(o *op) bool {
	return o.Key.kind == kindServer && refusesAtZero(o.Value.scheduler)
}

// serverKey returns the key of the virtual server of a real server.
func serverKey(k *key) key {
	s := *k
	s.kind, s.real = kindServer, key{}.real
	return s
}

func removedServers(run []op) map[key]bool {
	var removed map[key]bool
	for i := range run {
		if o := &run[i]; o.Kind == backends.Remove && o.Key.kind == kindServer {
			if removed == nil {
				removed = map[key]bool{}
			}
			removed[o.Key] = true
		}
	}
	return removed
}

// request returns the request of an operation.
func (t *target) request(o *op) ipvs.Op {
	server := t.marks.server(&o.Key)
	if o.Key.kind == kindServer {
		config := ipvs.ServiceConfig{Scheduler: o.Value.scheduler, Flags: o.Value.flags | t.tag, Timeout: o.Value.timeout}
		switch o.Kind {
		case backends.Remove:
			return ipvs.DelService(server)
		case backends.Replace:
			return ipvs.SetService(server, config)
		case backends.Add:
		}
		return ipvs.AddService(server, config)
	}
	d := ipvs.Destination{Addr: o.Key.real, Weight: o.Value.weight}
	switch {
	case o.Kind == backends.Remove && t.drains(o):
		return ipvs.SetDestination(server, ipvs.Destination{Addr: o.Key.real, Upper: t.deadline()})
	case o.Kind == backends.Remove:
		return ipvs.DelDestination(server, o.Key.real)
	case o.Kind == backends.Replace || t.drainer.of.has(server, o.Key):
		return ipvs.SetDestination(server, d)
	}
	return ipvs.AddDestination(server, d)
}

// record keeps account of draining real servers after operations.
func (t *target) record(run []op, bad map[int]error) {
	began := false
	for i := range run {
		o := &run[i]
		switch {
		case bad[i] != nil:
		case o.Key.kind == kindServer && (o.Kind == backends.Remove || endsDraining(o)):
			delete(t.drainer.of, t.marks.server(&o.Key))
		case o.Key.kind != kindDestination:
		case o.Kind == backends.Remove && t.drains(o):
			t.drainer.of.add(t.marks.server(&o.Key), o.Key)
			began = true
		default:
			t.drainer.of.remove(t.marks.server(&o.Key), o.Key)
		}
	}
	if began {
		t.startDraining()
	}
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
