package etcdstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/vipkit/vipkit/allocator"
)

// maxRecord bounds the bytes of a claim, so that a transaction stays below the 1.5 MiB
// that etcd accepts: one that is too large fails for all commits that share it.
const maxRecord = 1200

// record is a claim in etcd.
type record struct {
	Owner   allocator.Owner `json:"owner"`
	Token   uint64          `json:"token,string"`
	Since   time.Time       `json:"since"`
	Expires *time.Time      `json:"expires,omitempty"`
}

func encode(c allocator.Claim) (string, error) {
	if !utf8.ValidString(string(c.Owner)) {
		return "", fmt.Errorf("%w owner %q: it is not UTF-8", allocator.ErrInvalid, c.Owner)
	}
	r := record{Owner: c.Owner, Token: c.Token, Since: c.Since}
	if !c.IsBound() {
		r.Expires = &c.Expires
	}
	text, err := json.Marshal(r)
	if err == nil && len(text) > maxRecord {
		err = fmt.Errorf("%w owner %.40q...: its claim has %d bytes, more than %d", allocator.ErrInvalid, c.Owner, len(text), maxRecord)
	}
	return string(text), err
}

// keyOf returns the key of a claim's path; false for other paths.
func (s *Store) keyOf(path []byte) (allocator.Key, bool) {
	text, isClaim := strings.CutPrefix(string(path), s.claims)
	if !isClaim {
		return allocator.Key{}, false
	}
	k, err := allocator.ParseKey(text)
	return k, err == nil && k.String() == text
}

// decode reads a claim; false if the path names no key.
//
// An unreadable claim keeps its key. Its age is unknown, so it is always dated now, and no
// repair frees it.
func (s *Store) decode(kv *mvccpb.KeyValue) (allocator.Claim, bool) {
	k, isClaim := s.keyOf(kv.Key)
	if !isClaim {
		return allocator.Claim{}, false
	}
	c := allocator.Claim{Key: k, Version: allocator.Version(kv.ModRevision)}
	var r record
	if err := json.Unmarshal(kv.Value, &r); err != nil || r.Owner == "" {
		c.Owner, c.Token, c.Since = UnreadablePrefix+allocator.Owner(kv.Key), uint64(kv.ModRevision), time.Now().Round(0).UTC()
		return c, true
	}
	c.Owner, c.Token, c.Since = r.Owner, r.Token, r.Since.UTC()
	if r.Expires != nil {
		c.Expires = r.Expires.UTC()
	}
	return c, true
}
