package addresses

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vipkit/vipkit/internal/journal"
)

// state has the addresses that the backend has added. They are in a file, too.
type state struct {
	own  map[netip.Addr]bool
	file *journal.Set
	path string
	read bool
}

func newState(path string) *state {
	return &state{own: map[netip.Addr]bool{}, file: journal.New(path), path: path}
}

// load reads the file, once. Of a damaged file nothing is believed: an address may be another
// program's.
func (s *state) load() error {
	if s.read {
		return nil
	}
	whole, err := s.file.Load()
	if err != nil {
		return fmt.Errorf("reading which addresses were added: %w", err)
	}
	s.read = true
	for text := range s.file.All() {
		if a, err := netip.ParseAddr(text); whole && err == nil {
			s.own[a] = true
		} else {
			s.file.Remove(text)
		}
	}
	return nil
}

func (s *state) add(a netip.Addr) {
	s.own[a] = true
	s.file.Add(a.String())
}

func (s *state) remove(a netip.Addr) {
	delete(s.own, a)
	s.file.Remove(a.String())
}

// flush writes what has changed.
func (s *state) flush() error {
	err := os.MkdirAll(filepath.Dir(s.path), 0o755)
	if err == nil {
		err = s.file.Flush()
	}
	if err != nil {
		return fmt.Errorf("recording which addresses are added: %w", err)
	}
	return nil
}

// clear forgets all addresses, and removes the file.
func (s *state) clear() error {
	clear(s.own)
	if err := s.file.Clear(); err != nil {
		return fmt.Errorf("removing the record of addresses: %w", err)
	}
	return nil
}
