package allocator

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
)

// Owner names who holds a key, in a form that only the caller needs to
// understand, such as "services/default/web". The empty Owner is nobody and
// cannot hold anything.
type Owner string

// Kind is what sort of thing a key is.
type Kind uint8

// A key is an IPv4 address, an IPv6 address, or a port. The zero Kind is that of
// the zero Key.
const (
	IPv4 Kind = iota + 1
	IPv6
	Port
)

// String gives the name of the kind.
func (k Kind) String() string {
	switch k {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	case Port:
		return "port"
	}
	return "Kind(" + strconv.Itoa(int(k)) + ")"
}

// Key is one thing that can be allocated: an IP address or a port. It is a
// comparable value in canonical form, so two spellings of an address are one
// key. The zero Key is none.
type Key struct {
	addr netip.Addr
	port uint16
}

// AddrKey is the key of an address. An IPv4-mapped IPv6 address is the IPv4
// address. An address with a zone has no key: the zero Key comes back.
func AddrKey(a netip.Addr) Key {
	if a.Zone() != "" {
		return Key{}
	}
	return Key{addr: a.Unmap()}
}

// PortKey is the key of a port. Port 0 has none: the zero Key comes back.
func PortKey(port uint16) Key { return Key{port: port} }

// ParseKey reads an address or a decimal port number, in any spelling that
// [netip.ParseAddr] and [strconv.ParseUint] accept. Key.String gives the
// canonical one. An address with a zone and port 0 are errors, as all else is; they
// have no [Reason].
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

// Kind tells which sort of key it is; 0 for the zero Key.
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
