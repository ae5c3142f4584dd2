package ipvs

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// With Options.DrainServices, a virtual server that no Service needs any more stays as long as
// its real servers drain, and so does what keeps its packets on their way: its address at the
// device, and the entries of sets that belong to it. The kernel shows all of that: a virtual server is
// retained if it has real servers and all of them drain.

// retained are virtual servers that only drain, and addresses and entries of sets that exist
// only because of them. The listing leaves both out.
type retained struct {
	servers map[ipvs.ServiceKey]key
	others  map[key]bool
	// at counts the virtual servers at an address.
	at map[netip.Addr]int
}

func newRetained() retained {
	return retained{servers: map[ipvs.ServiceKey]key{}, others: map[key]bool{}, at: map[netip.Addr]int{}}
}

func (r *retained) add(server ipvs.ServiceKey, k key) {
	r.remove(server) // the kernel may list it twice
	r.servers[server] = k
	r.at[k.addr.Addr()]++
}

func (r *retained) remove(server ipvs.ServiceKey) {
	k, has := r.servers[server]
	if !has {
		return
	}
	delete(r.servers, server)
	if r.at[k.addr.Addr()]--; r.at[k.addr.Addr()] == 0 {
		delete(r.at, k.addr.Addr())
	}
}

// companions returns the objects that a virtual server may need, in the order of their removal.
func companions(server *key) []key {
	f := frontendOf(server).key
	f.set, f.kind = setServers, setServers.kind()
	if server.inside {
		f.set, f.kind = setMarks, setMarks.kind()
	}
	a := key{addr: netip.AddrPortFrom(server.addr.Addr(), 0), kind: kindAddress}
	e := a
	e.set, e.kind = setAddresses, setAddresses.kind()
	return []key{f, a, e}
}

// isNeeded reports whether a retained virtual server needs an address or an entry.
func (t *target) isNeeded(r *retained, k *key) bool {
	if k.isAddress() {
		return r.at[k.addr.Addr()] > 0
	}
	if k.set != setServers && k.set != setMarks {
		return false
	}
	server := *k
	server.inside = k.set == setMarks
	_, has := r.servers[t.marks.server(&server)]
	return has
}

// isRetained reports whether a virtual server is retained.
func (t *target) isRetained(k *key) bool {
	if len(t.drainer.retained.servers) == 0 || k.kind != kindServer {
		return false
	}
	_, has := t.drainer.retained.servers[t.marks.server(k)]
	return has
}

// withoutRetained returns operations without removals of retained virtual servers. These are
// among the operations that revert others, and the server must stay as it was.
func (t *target) withoutRetained(run []op) []op {
	if len(t.drainer.retained.servers) == 0 {
		return run
	}
	return slices.DeleteFunc(slices.Clone(run), func(o op) bool { return o.Kind == backends.Remove && t.isRetained(&o.Key) })
}

// mustRetain reports whether a removed virtual server stays until its connections have ended.
func (t *target) mustRetain(o *op) bool {
	return t.drainer.services && t.drainer.timeout > 0 &&
		o.Kind == backends.Remove && o.Key.kind == kindServer && o.Key.protocol == ipaddr.TCP && !endsDraining(o)
}

// withhold divides operations into those to carry out, and those that only change what is
// retained. Also retained will be the virtual servers of begin.
func (t *target) withhold(ops []op) (run, withheld []op, begin retained) {
	now, begin := &t.drainer.retained, t.removedServices(ops)
	if len(begin.servers) == 0 && len(now.servers) == 0 {
		return ops, nil, begin
	}
	for i := range ops {
		o := &ops[i]
		if o.Kind == backends.Add && now.others[o.Key] ||
			o.Kind == backends.Remove && (t.mustRetain(o) || t.isNeeded(now, &o.Key) || t.isNeeded(&begin, &o.Key)) {
			withheld = append(withheld, *o)
		} else {
			run = append(run, *o)
		}
	}
	return run, withheld, begin
}

// removedServices returns the virtual servers that operations remove and that must be retained.
func (t *target) removedServices(ops []op) (begin retained) {
	for i := range ops {
		if o := &ops[i]; t.mustRetain(o) {
			if begin.servers == nil {
				begin = newRetained()
			}
			begin.add(t.marks.server(&o.Key), o.Key)
		}
	}
	return begin
}

// recordRetained records what is retained after operations that withhold has divided.
func (t *target) recordRetained(run, withheld []op, begin retained) {
	now := &t.drainer.retained
	for i := range run {
		if o := &run[i]; o.Kind == backends.Add && t.isRetained(&o.Key) {
			now.remove(t.marks.server(&o.Key))
		}
	}
	for server, k := range begin.servers {
		now.add(server, k)
	}
	for i := range withheld {
		switch o := &withheld[i]; {
		case o.Kind == backends.Add:
			delete(now.others, o.Key)
		case o.Key.kind != kindServer:
			now.others[o.Key] = true
		}
	}
	if len(begin.servers) > 0 {
		t.startDraining()
	}
}

// releaseCompanions returns the operations that remove what only a virtual server needed that is
// retained no more. They are retained no more either.
func (t *target) releaseCompanions(server *key) (ops []op) {
	now := &t.drainer.retained
	for _, k := range companions(server) {
		if now.others[k] && !t.isNeeded(now, &k) {
			delete(now.others, k)
			ops = append(ops, op{Kind: backends.Remove, Key: k})
		}
	}
	return ops
}

// onlyDrains reports whether a virtual server with these real servers is retained.
func (l *listing) onlyDrains(k *key, of *ipvs.Service, all []ipvs.DestinationState) bool {
	removal := op{Kind: backends.Remove, Key: *k, Value: value{scheduler: of.Config.Scheduler}}
	drain, _ := countStates(all, 0)
	return len(all) > 0 && drain == len(all) && l.mustRetain(&removal)
}

// leaveOut removes from the listing what exists only because of retained virtual servers. An
// address has other uses if anything else is listed that has it.
func (l *listing) leaveOut() {
	now := &l.drainer.retained
	if len(now.servers) == 0 {
		return
	}
	used := map[netip.Addr]bool{}
	for i := range l.found {
		if k := &l.found[i].Key; !k.isAddress() && !l.isNeeded(now, k) {
			used[k.addr.Addr()] = true
		}
	}
	l.found = slices.DeleteFunc(l.found, func(o object) bool {
		if !l.isNeeded(now, &o.Key) || o.Key.isAddress() && used[o.Key.addr.Addr()] {
			return false
		}
		now.others[o.Key] = true
		return true
	})
}

// nextBatch returns at most limit of the virtual servers with something that drains: each one once
// in a round, and those that began to drain meanwhile in the next round.
func (d *drainer) nextBatch(limit int) []ipvs.ServiceKey {
	if len(d.round) == 0 {
		d.round = d.servers()
	}
	n := min(limit, len(d.round))
	batch := d.round[:n]
	d.round = d.round[n:]
	return batch
}

// servers returns the virtual servers with something that drains.
func (d *drainer) servers() []ipvs.ServiceKey {
	all := slices.Collect(maps.Keys(d.of))
	for server := range d.retained.servers {
		if d.of[server] == nil {
			all = append(all, server)
		}
	}
	return all
}
