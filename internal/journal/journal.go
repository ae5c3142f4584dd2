package journal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
)

// Set is a set of strings. [Set.Load] reads it, and [Set.Flush] writes what has changed since. Its
// methods must not be called at the same time.
type Set struct {
	path string
	all  map[string]bool
	// pending are the lines to append, lines is how many the file has, and stale says that it
	// must be replaced.
	pending strings.Builder
	lines   int
	stale   bool
}

// slack is how many more lines than strings the file may have.
const slack = 1000

// New returns a set that is kept in the file at path; in memory alone if path is empty.
func New(path string) *Set { return &Set{path: path, all: map[string]bool{}, stale: true} }

// Load replaces the set by that of the file; an empty one if there is no file. whole is false if
// a line other than the last is damaged. Such lines are left out, so the set may lack strings, or
// have some that were removed.
func (s *Set) Load() (whole bool, err error) {
	s.all, s.lines, s.stale = map[string]bool{}, 0, true
	s.pending.Reset()
	if s.path == "" {
		return true, nil
	}
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	s.stale, whole = false, true
	for line := range strings.Lines(string(text)) {
		s.lines++
		content, ok := parse(line)
		gone, isRemoval := strings.CutPrefix(content, "-")
		switch {
		case !ok:
			s.stale, whole = true, whole && !strings.HasSuffix(line, "\n")
		case isRemoval:
			delete(s.all, gone)
		default:
			s.all[content] = true
		}
	}
	return whole, nil
}

func format(content string) string {
	return fmt.Sprintf("%s %08x\n", content, crc32.ChecksumIEEE([]byte(content)))
}

func parse(line string) (content string, ok bool) {
	content = line[:max(strings.LastIndexByte(line, ' '), 0)]
	return content, content != "" && line == format(content)
}

// Has reports whether the set has a string.
func (s *Set) Has(x string) bool { return s.all[x] }

// Len returns how many strings the set has.
func (s *Set) Len() int { return len(s.all) }

// All returns the strings of the set, in no order. The set may be changed meanwhile.
func (s *Set) All() iter.Seq[string] { return maps.Keys(s.all) }

// Add adds a string, which must not begin with a minus sign or have an end of line.
func (s *Set) Add(x string) {
	if !s.all[x] {
		s.all[x] = true
		s.append(x)
	}
}

// Remove removes a string.
func (s *Set) Remove(x string) {
	if s.all[x] {
		delete(s.all, x)
		s.append("-" + x)
	}
}

func (s *Set) append(content string) {
	if s.path != "" {
		s.pending.WriteString(format(content))
		s.lines++
	}
}

// Compact has the next Flush replace the file if it has more lines than the set has strings.
func (s *Set) Compact() { s.stale = s.stale || s.lines > len(s.all) }

// Flush writes what has changed, so that it outlives the process. What a loss of power leaves is a set
// of some earlier time, since lines are not forced to the disk. After an error the next
// Flush writes everything.
func (s *Set) Flush() error {
	if s.lines > 2*len(s.all)+slack {
		s.stale = true
	}
	var err error
	switch {
	case s.path == "" || s.pending.Len() == 0 && !s.stale:
		return nil
	case s.stale:
		err = s.replace()
	default:
		err = s.write()
	}
	s.stale = err != nil
	s.pending.Reset()
	return err
}

// write appends the pending lines.
func (s *Set) write() error {
	f, err := os.OpenFile(s.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.pending.String())
	return errors.Join(err, f.Close())
}

// replace replaces the file in one step.
func (s *Set) replace() error {
	var text strings.Builder
	for _, x := range slices.Sorted(s.All()) {
		text.WriteString(format(x))
	}
	f, err := os.OpenFile(s.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text.String())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	s.lines = len(s.all)
	return nil
}

// Clear empties the set, and removes the file.
func (s *Set) Clear() error {
	s.all, s.lines, s.stale = map[string]bool{}, 0, true
	s.pending.Reset()
	if s.path == "" {
		return nil
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
