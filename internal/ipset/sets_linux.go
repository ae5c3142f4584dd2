package ipset

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// newestRevision returns the newest revision of a type that this package knows: with other ones a
// set might have options that Create does not compare.
func newestRevision(t Type) uint8 {
	switch t {
	case HashIP:
		return 6
	case HashIPPort:
		return 7
	default: // HashIPPortNet
		return 8
	}
}

func (s *Set) family() uint8 {
	if s.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// Create makes sets. A set that exists with the same options is a success; otherwise the error
// wraps [ErrDiffers] and names the differences. All sets are tried, and the errors joined, each an
// [*Error].
func (c *Conn) Create(ctx context.Context, sets ...Set) error {
	var errs []error
	fail := func(s *Set, err error) { errs = append(errs, &Error{Action: "create", Set: s.Name, Err: err}) }
	revisions := map[Type]uint8{}
	var r rawnetlink.Requests
	var made []*Set // by the number of the request
	for i := range sets {
		s := &sets[i]
		if err := s.check(); err != nil {
			fail(s, err)
			continue
		}
		revision, known := revisions[s.Type]
		if !known {
			var err error
			if revision, err = c.revision(ctx, s); err != nil {
				fail(s, err)
				continue
			}
			revisions[s.Type] = revision
		}
		addSet(&r, s, revision)
		made = append(made, s)
	}
	failed, err := c.netlink.Do(ctx, &r)
	if err != nil {
		errs = append(errs, fmt.Errorf("ipset: %w", err))
	}
	for i := range failed {
		s, err := made[failed[i].Index], meaning(&failed[i])
		if failed[i].Errno == unix.EEXIST {
			err = c.compare(ctx, s)
		}
		if err != nil {
			fail(s, err)
		}
	}
	return errors.Join(errs...)
}

// revision returns the newest revision of the type of a set that both the kernel and this package
// know.
func (c *Conn) revision(ctx context.Context, s *Set) (uint8, error) {
	b := rawnetlink.AppendString(nil, attrTypeName, string(s.Type))
	b = appendUint8(b, attrFamily, s.family())
	var lowest, highest uint8
	err := c.ask(ctx, request{command: cmdType, flags: unix.NLM_F_ACK, attributes: b}, func(a rawnetlink.Attrs) error {
		lowest, highest = uint8Of(a.Find(attrRevisionMin)), uint8Of(a.Find(attrRevision))
		return nil
	})
	if err != nil {
		return 0, meaning(err)
	}
	ours := newestRevision(s.Type)
	if lowest > ours {
		return 0, fmt.Errorf("%w: revisions of %s begin with %d, want %d", ErrUnsupported, s.Type, lowest, ours)
	}
	return min(ours, highest), nil
}

func addSet(r *rawnetlink.Requests, s *Set, revision uint8) {
	b := begin(r, cmdCreate, unix.NLM_F_CREATE|unix.NLM_F_EXCL, s.Name)
	b = rawnetlink.AppendString(b, attrTypeName, string(s.Type))
	b = appendUint8(b, attrRevision, revision)
	b = appendUint8(b, attrFamily, s.family())
	b, at := rawnetlink.Nest(b, attrData)
	if s.MaxElem != 0 {
		b = appendUint32(b, attrMaxElem, s.MaxElem)
	}
	if s.SkbInfo {
		b = appendUint32(b, attrOptions, optionSkbInfo)
	}
	rawnetlink.Close(b, at)
	r.End(b)
}

// compare returns an error unless the set is as wanted. The kernel's own comparison leaves out
// the family.
func (c *Conn) compare(ctx context.Context, want *Set) error {
	var have Info
	err := c.headers(ctx, want.Name, func(i Info) { have = i })
	if err != nil {
		return meaning(err)
	}
	if d := have.differences(*want); d != "" {
		return fmt.Errorf("%w: %s", ErrDiffers, d)
	}
	return nil
}

// Destroy removes sets. A set that does not exist is a success; the error for a set that is in
// use wraps [ErrInUse]. All sets are tried, and the errors joined, each an [*Error].
func (c *Conn) Destroy(ctx context.Context, names ...string) error {
	return c.eachName(ctx, cmdDestroy, "destroy", names)
}

// Flush removes all entries of sets. A set that does not exist is a success. All sets are tried,
// and the errors joined, each an [*Error].
func (c *Conn) Flush(ctx context.Context, names ...string) error {
	return c.eachName(ctx, cmdFlush, "flush", names)
}

// eachName sends a command about each of some sets.
func (c *Conn) eachName(ctx context.Context, command uint16, action string, names []string) error {
	var errs []error
	fail := func(name string, err error) { errs = append(errs, &Error{Action: action, Set: name, Err: err}) }
	var r rawnetlink.Requests
	var sent []string
	for _, name := range names {
		if err := checkName(name); err != nil {
			fail(name, err)
			continue
		}
		r.End(begin(&r, command, 0, name))
		sent = append(sent, name)
	}
	failed, err := c.netlink.Do(ctx, &r)
	if err != nil {
		errs = append(errs, fmt.Errorf("ipset: %s: %w", action, err))
	}
	for i := range failed {
		if failed[i].Errno != unix.ENOENT {
			fail(sent[failed[i].Index], meaning(&failed[i]))
		}
	}
	return errors.Join(errs...)
}

// Sets describes all sets whose names begin with a prefix. To count the entries, the kernel reads
// all of them, which takes about a millisecond for 100,000.
func (c *Conn) Sets(ctx context.Context, prefix string) ([]Info, error) {
	var all []Info
	err := c.headers(ctx, "", func(i Info) {
		if strings.HasPrefix(i.Name, prefix) {
			all = append(all, i)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("ipset: list sets: %w", err)
	}
	return all, nil
}

// headers lists one set, or all, without entries.
func (c *Conn) headers(ctx context.Context, set string, each func(Info)) error {
	q := request{command: cmdList, flags: unix.NLM_F_DUMP, set: set, attributes: appendUint32(nil, attrFlags, onlyHeader)}
	return c.ask(ctx, q, func(a rawnetlink.Attrs) error {
		i, err := parseInfo(a)
		if err == nil {
			each(i)
		}
		return err
	})
}

// parseInfo reads the description of a set.
func parseInfo(a rawnetlink.Attrs) (Info, error) {
	i := Info{}
	i.Name, i.Type = a.Text(attrSetName), Type(a.Text(attrTypeName))
	i.IPv6 = uint8Of(a.Find(attrFamily)) == unix.NFPROTO_IPV6
	data := rawnetlink.Attrs(a.Find(attrData))
	if i.Name == "" || i.Type == "" || data.Check() != nil {
		return Info{}, rawnetlink.ErrMalformed
	}
	i.MaxElem, i.Entries = data.Uint32(attrMaxElem), int(data.Uint32(attrElements))
	o := data.Uint32(attrOptions)
	i.SkbInfo = o&optionSkbInfo != 0
	i.others = otherOptions(data, o)
	return i, nil
}

// otherOptions names the options of a set that this package does not write.
func otherOptions(data rawnetlink.Attrs, flags uint32) string {
	var all []string
	if v := data.Find(attrTimeout); v != nil {
		all = append(all, fmt.Sprintf("timeout %d", rawnetlink.Uint32Of(v)))
	}
	if v := data.Find(attrNetmask); v != nil {
		all = append(all, fmt.Sprintf("netmask %d", uint8Of(v)))
	}
	if data.Find(attrBitmask) != nil {
		all = append(all, "a bitmask")
	}
	if flags&optionForceAdd != 0 {
		all = append(all, "forceadd")
	}
	if flags&optionComment != 0 {
		all = append(all, "comments")
	}
	if flags&optionCounters != 0 {
		all = append(all, "counters")
	}
	return strings.Join(all, ", ")
}
