package ipvs

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// marks hands out packet marks to frontends whose connections from inside the cluster have a
// virtual server of their own. The kernel has them in the set setMarks.
type marks struct {
	of map[frontend]uint32
	// used are marks that must not be handed out, also the marks of foreign virtual servers.
	used map[uint32]bool
	next uint32
	// limit is how many marks there are.
	limit uint32
}

// server returns the virtual server of a key.
func (m *marks) server(k *key) ipvs.ServiceKey {
	if k.inside {
		return ipvs.ServiceKey{Mark: m.of[frontendOf(k)], IPv6: k.addr.Addr().Is6()}
	}
	return ipvs.ServiceKey{Protocol: k.protocol, Addr: k.addr}
}

// errMarks is, as a full set, the error of each service port that needs one: all others are served.
var errMarks = errors.New("all 65,536 packet marks are in use")

// take returns the mark of a frontend, a new one if it has none.
func (m *marks) take(k *key) (uint32, error) {
	f := frontendOf(k)
	if mark, has := m.of[f]; has {
		return mark, nil
	}
	for range m.limit {
		m.next = (m.next + 1) % m.limit
		if mark := markBase | m.next; !m.used[mark] {
			m.put(f, mark)
			return mark, nil
		}
	}
	return 0, errMarks
}

// put records the mark of a frontend.
func (m *marks) put(f frontend, mark uint32) { m.of[f], m.used[mark] = mark, true }

// release ends the use of the mark of a frontend.
func (m *marks) release(k *key) {
	f := frontendOf(k)
	delete(m.used, m.of[f])
	delete(m.of, f)
}

// orphan returns the key of a virtual server for marked packets whose frontend is unknown,
// because another program changed the set of marks. Render never returns it.
func (m *marks) orphan(mark uint32, isIPv6 bool) key {
	var b [16]byte
	binary.BigEndian.PutUint32(b[12:], mark)
	a := netip.AddrFrom16(b)
	if !isIPv6 {
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	k := key{kind: kindServer, addr: netip.AddrPortFrom(a, 0)}
	m.put(frontendOf(&k), mark)
	return k
}
