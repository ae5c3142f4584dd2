package ipset

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Type is the type of a set, by the kernel's name.
type Type string

// The types of sets that this package writes.
const (
	// HashIP has entries of Addr.
	HashIP Type = "hash:ip"
	// HashIPPort has entries of Addr, Protocol and Port.
	HashIPPort Type = "hash:ip,port"
	// HashIPPortNet has entries of Addr, Protocol, Port and Net.
	HashIPPortNet Type = "hash:ip,port,net"
)

const (
	maxName        = 31 // bytes
	defaultMaxElem = 65_536
)

// Set describes a set. It is comparable.
type Set struct {
	Name string // 1 to 31 bytes
	Type Type
	IPv6 bool
	// MaxElem limits the number of entries; 0 means 65,536.
	MaxElem uint32
	// SkbInfo says that entries have a mark beside their key.
	SkbInfo bool
}

// Info describes a set that exists.
type Info struct {
	// Set has the actual type, even one that this package does not write, and the actual
	// MaxElem.
	Set
	// Entries is the number of entries, 0 if the kernel does not tell (before Linux 4.10).
	Entries int
	// others has the options that this package does not write.
	others string
}

// Entry is an entry of a set. It is comparable, and [Conn.Entries] returns it equal to the one
// that [Conn.Do] has added. All fields before Mark are the key of the entry.
type Entry struct {
	Addr netip.Addr
	// Protocol is the number of TCP, UDP or SCTP; 0 for HashIP.
	Protocol uint8
	Port     uint16
	// Net is the network of HashIPPortNet. The kernel refuses a network of length 0: add its
	// two halves.
	Net netip.Prefix
	// Mark is for sets with SkbInfo: the target SET gives it to packets, with a full mask.
	// 0 is no mark.
	Mark uint32
	// Foreign is set by Entries if another program has given the entry what this package
	// does not write: a comment, a mark with a mask, a priority, a queue, a timeout or
	// "nomatch". Do ignores it, and adding the entry removes all that except a timeout.
	Foreign bool
}

// Op adds or deletes an entry.
type Op struct {
	Set string
	// Delete ignores the Mark of the entry.
	Delete bool
	Entry  Entry
}

// String returns the key of the entry as the program ipset writes it.
func (e Entry) String() string {
	var b strings.Builder
	b.WriteString(e.Addr.String())
	if e.Protocol != 0 {
		fmt.Fprintf(&b, ",%s:%d", protocolName(e.Protocol), e.Port)
	}
	switch {
	case e.Net == netip.Prefix{}:
	case e.Net.IsSingleIP():
		b.WriteString("," + e.Net.Addr().String())
	default:
		b.WriteString("," + e.Net.String())
	}
	return b.String()
}

func protocolName(n uint8) string {
	switch n {
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return fmt.Sprint(n)
}

// check returns an error if no set has such entries.
func (e *Entry) check() error {
	switch {
	case !e.Addr.IsValid():
		return errors.New("no Addr")
	case e.Addr.Zone() != "":
		return errors.New("zone in Addr")
	case e.Protocol == 0 && (e.Port != 0 || e.Net != netip.Prefix{}):
		return errors.New("no Protocol")
	case e.Net != netip.Prefix{}:
		return checkNet(e.Net, e.Addr.Is4())
	}
	return nil
}

func checkNet(n netip.Prefix, is4 bool) error {
	switch {
	case !n.IsValid():
		return errors.New("invalid Net")
	case n.Addr().Is4() != is4:
		return fmt.Errorf("families of Net %v and Addr differ", n)
	case n.Bits() == 0:
		return fmt.Errorf("length of Net %v is 0, which the kernel refuses; add the two halves", n)
	case n != n.Masked():
		return fmt.Errorf("bits beyond the length of Net %v, want %v", n, n.Masked())
	}
	return nil
}

// check returns an error if the set cannot be made.
func (s *Set) check() error {
	if err := checkName(s.Name); err != nil {
		return err
	}
	switch s.Type {
	case HashIP, HashIPPort, HashIPPortNet:
		return nil
	}
	return fmt.Errorf("unknown type %q", s.Type)
}

// checkName refuses the empty name above all: the kernel takes it for all sets.
func checkName(name string) error {
	if name == "" || len(name) > maxName || strings.ContainsRune(name, 0) {
		return fmt.Errorf("wrong name %q: a name has 1 to %d bytes", name, maxName)
	}
	return nil
}

// differences returns how a set differs from the one that is wanted, "" if it does not.
func (have *Info) differences(want Set) string {
	var all []string
	differ := func(field string, have, want any) {
		if have != want {
			all = append(all, fmt.Sprintf("%s is %v, want %v", field, have, want))
		}
	}
	if want.MaxElem == 0 {
		want.MaxElem = defaultMaxElem
	}
	differ("Type", have.Type, want.Type)
	differ("IPv6", have.IPv6, want.IPv6)
	differ("MaxElem", have.MaxElem, want.MaxElem)
	differ("SkbInfo", have.SkbInfo, want.SkbInfo)
	if have.others != "" {
		all = append(all, "it has "+have.others)
	}
	return strings.Join(all, ", ")
}
