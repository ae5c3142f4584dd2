package userspace

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
)

// Dump writes all objects of the default identity.
func Dump(ctx context.Context, c Capture) (string, error) {
	b, err := New(Options{Capture: c})
	if err != nil {
		return "", err
	}
	defer b.Close() //nolint:errcheck // it was used for reading only
	var lines []string
	for o, err := range b.kernel.List(ctx) {
		if err != nil {
			return "", err
		}
		lines = append(lines, fmt.Sprintf("%+v", o))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// ReachFrom makes a port that from which the next endpoint is reached. There must be no
// traffic yet.
func (b *Backend) ReachFrom(port uint16) {
	s := b.sockets
	for s.nextPort() != port {
	}
	s.ports.Add(^uint32(0)) // it is the next one again
	for begin := range uint32(sourcePorts) {
		if (begin*engine.Stride(sourcePorts))%uint32(sourcePorts) == uint32(port-firstSourcePort) {
			s.packetPorts = engine.NewPorts(firstSourcePort, sourcePorts, begin)
		}
	}
}

// TakeProgramAway takes the program that chooses sockets out of the namespace, as anybody
// with the privilege may.
func (b *Backend) TakeProgramAway() error {
	l, ok := b.kernel.(*local)
	if !ok {
		return fmt.Errorf("%T has no such program", b.kernel)
	}
	attr := [1]uint32{uint32(l.lookup.link)}
	_, err := bpf(unix.BPF_LINK_DETACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return os.NewSyscallError("bpf", err)
}
