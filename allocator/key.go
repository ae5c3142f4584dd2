package allocator

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/vipkit/vipkit/internal/enum"
)

// Owner names the object that has a key, in a form that only the caller interprets,
// such as "services/default/web". The empty Owner is invalid.
type Owner string

// Kind is the kind of a key.
type Kind uint8

// A key is an IPv4 address, an IPv6 address, or a port. The zero Kind is that of
// the zero Key.
const (
	// IPv4 is the kind of IPv4 addresses, also of mapped ones.
	IPv4 Kind = iota + 1
	// IPv6 is the kind of IPv6 addresses.
	IPv6
	// Port is the kind of node ports.
	Port
)

// String returns the name of the kind.
func (k Kind) String() string { return enum.Name(k, "none", "IPv4", "IPv6", "port") }

// Key is an IP address or a port that can be allocated. It is a comparable value in
// canonical form, so two spellings of an address are one key. The zero Key is none.
type Key struct {
	addr netip.Addr
	port uint16
}

// AddrKey is the key of an address. An IPv4-mapped IPv6 address is the IPv4
// address. An address with a zone gives the zero Key.
func AddrKey(a netip.Addr) Key {
	if a.Zone() != "" {
		return Key{}
	}
	return Key{addr: a.Unmap()}
}

// PortKey is the key of a port. Port 0 gives the zero Key.
func PortKey(port uint16) Key { return Key{port: port} }

// ParseKey reads an address or a decimal port number, in any spelling that
// [netip.ParseAddr] and [strconv.ParseUint] accept. Key.String gives the
// canonical one. Everything else is an error, also an address with a zone and port 0.
// The errors have no [Reason].
func ParseKey(text string) (Key, error) {
	if port, err := strconv.ParseUint(text, 10, 16); err == nil && port > 0 {
		return PortKey(uint16(port)), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return Key{}, fmt.Errorf("%q is neither an address nor a port", text)
	}
	if a.Zone() != "" {
		return Key{}, fmt.Errorf("address %s has a zone", text)
	}
	return AddrKey(a), nil
}

// Addr is the address; the zero Addr if the key is not one.
func (k Key) Addr() netip.Addr { return k.addr }

// Port is the port; 0 if the key is not one.
func (k Key) Port() uint16 { return k.port }

// Kind is the kind of the key; 0 for the zero Key.
func (k Key) Kind() Kind {
	switch {
	case k.addr.Is4():
		return IPv4
	case k.addr.Is6():
		return IPv6
	case k.port > 0:
		return Port
	}
	return 0
}

// String is the address or the number of the port in canonical form.
func (k Key) String() string {
	switch {
	case k.addr.IsValid():
		return k.addr.String()
	case k.port > 0:
		return strconv.Itoa(int(k.port))
	}
	return "none"
}

// Compare orders keys: IPv4 addresses before IPv6 addresses before ports.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind(), o.Kind()), k.addr.Compare(o.addr), cmp.Compare(k.port, o.port))
}
