package allocator

// Bounds of the band that Kubernetes keeps for addresses and ports that requests name.
const (
	minBand     = 16
	maxIPBand   = 256
	maxPortBand = 128
)

// IPBand is how many addresses at the start of a range of the given size are
// allocated dynamically only when all others are taken: a sixteenth, at least 16 and
// at most 256; none of a range of 16 or less. The size includes the network and the
// broadcast address.
func IPBand(size uint64) uint64 { return band(size, size/16, maxIPBand) }

// PortBand is the same for a range of ports: a 32nd, at least 16 and at most
// 128; none of a range of 16 or less.
func PortBand(size uint64) uint64 { return band(size, size/32, maxPortBand) }

func band(size, share, limit uint64) uint64 {
	if size <= minBand {
		return 0
	}
	return min(max(minBand, share), limit)
}
