package allocator

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// Config describes a range. One of Prefix, Addresses and the two ports is set.
//
// Dynamic allocation takes the first keys, the lower band, only when all others are taken: a sixteenth
// of the addresses, at least 16 and at most 256; of ports a 32nd, at most 128; none of 16 keys or less.
type Config struct {
	// Prefix is a range of addresses. Bits beyond its length are ignored.
	// The network address is not part of it, nor is the broadcast address of
	// IPv4. A prefix of IPv6 has at most 64 host bits, one of IPv4 at most 30.
	Prefix netip.Prefix
	// Addresses is a range of addresses by its ends, such as a pool of load balancers. All of them
	// can be allocated.
	Addresses Block
	// FirstPort and LastPort are a range of ports, both included.
	FirstPort, LastPort uint16
	// Draining says that nothing new is allocated from the range; what is
	// allocated stays so.
	Draining bool
}

// Block is an interval of keys of one kind, both ends included.
type Block struct {
	// First and Last are the ends.
	First, Last Key
}

func (b Block) isValid() bool {
	return b.First.Kind() != 0 && b.First.Kind() == b.Last.Kind() && b.First.Compare(b.Last) <= 0
}

// ParseConfig reads a range from its canonical form: a prefix like 10.96.0.0/16, addresses
// like 10.0.0.10-10.0.0.20, or ports like 30000-32767. Everything else is [ErrInvalid]. [NewRange] checks whether
// it can be a range.
func ParseConfig(text string) (Config, error) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return Config{Prefix: prefix}, nil
	}
	first, last, _ := strings.Cut(text, "-")
	if a, err := netip.ParseAddr(first); err == nil {
		b, err := netip.ParseAddr(last)
		c := Config{Addresses: Block{AddrKey(a), AddrKey(b)}}
		if err == nil && a.Zone() == "" && b.Zone() == "" {
			return c, nil
		}
	}
	from, err1 := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if errors.Join(err1, err2) != nil {
		return Config{}, fmt.Errorf("%w range: %q is neither a prefix nor a range of addresses or ports", ErrInvalid, text)
	}
	return Config{FirstPort: uint16(from), LastPort: uint16(to)}, nil
}

// String is the range in canonical form.
func (c Config) String() string {
	if c.Prefix.IsValid() {
		return c.Prefix.Masked().String()
	}
	if c.Addresses != (Block{}) {
		return fmt.Sprintf("%v-%v", c.Addresses.First, c.Addresses.Last)
	}
	return fmt.Sprintf("%d-%d", c.FirstPort, c.LastPort)
}

// check validates the configuration.
func (c Config) check() error {
	isPorts, isBlock := c.FirstPort > 0 || c.LastPort > 0, c.Addresses != (Block{})
	kinds := 0
	for _, is := range [...]bool{c.Prefix.IsValid(), isBlock, isPorts} {
		if is {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return fmt.Errorf("%w range %v: it needs a prefix, addresses or ports, and no two of them", ErrInvalid, c)
	case isBlock && (!c.Addresses.isValid() || c.Addresses.First.Kind() == Port):
		return fmt.Errorf("%w range of addresses %v: its ends are of two kinds, or the first is above the last", ErrInvalid, c)
	case isPorts && (c.FirstPort == 0 || c.FirstPort > c.LastPort):
		return fmt.Errorf("%w range of ports %v: the first is 0, or above the last", ErrInvalid, c)
	case c.Prefix.Addr().Is4In6():
		return fmt.Errorf("%w range %v: it is IPv4, written as IPv6", ErrInvalid, c)
	}
	return nil
}

// addresses returns the size of a prefix, of which the band is a share, and how many of its
// addresses can be allocated.
func (c Config) addresses() (size, n uint64, err error) {
	edges, most := uint64(1), 64 // the network address
	if c.Prefix.Addr().Is4() {
		edges, most = 2, 30 // and the broadcast address
	}
	hostBits := c.Prefix.Addr().BitLen() - c.Prefix.Bits()
	if hostBits > most {
		return 0, 0, &RangeError{Reason: ErrTooLarge, Range: c.String()}
	}
	size = math.MaxUint64 // stands for 2^64 and more
	n = size
	if hostBits < 64 {
		size = 1 << hostBits
		n = size - min(edges, size)
	}
	return size, n, nil
}

// Bounds of the band that Kubernetes keeps for addresses and ports that requests name, and
// which part of a range it is.
const (
	minBand                = 16
	maxIPBand, ipShare     = 256, 16
	maxPortBand, portShare = 128, 32
)

// bandOf is how many keys at the start of a range of a size are allocated dynamically only when
// all others are taken: none of a small range.
func bandOf(size, share, most uint64) uint64 {
	if size <= minBand {
		return 0
	}
	return min(max(minBand, size/share), most)
}
