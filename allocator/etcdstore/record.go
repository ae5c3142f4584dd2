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

// maxRecord is how many bytes a claim has at most, so that any transaction of several stays
// below the 1.5 MiB that etcd takes: one that is too large fails for all who share it.
const maxRecord = 1200

// record is a claim as it stands in etcd.
type record struct {
	Owner   allocator.Owner `json:"owner"`
	Token   uint64          `json:"token,string"`
	Since   time.Time       `json:"since"`
	Expires *time.Time      `json:"expires,omitempty"`
}

func encode(c allocator.Claim) (string, error) {
	if !utf8.ValidString(string(c.Owner)) {
		return "", fmt.Errorf("owner %q is no text: %w", c.Owner, allocator.ErrInvalid)
	}
	r := record{Owner: c.Owner, Token: c.Token, Since: c.Since}
	if !c.IsBound() {
		r.Expires = &c.Expires
	}
	text, err := json.Marshal(r)
	if err == nil && len(text) > maxRecord {
		err = fmt.Errorf("owner %.40q... makes a claim of %d bytes, %d are the most: %w", c.Owner, len(text), maxRecord, allocator.ErrInvalid)
	}
	return string(text), err
}

// keyOf gives the key of a claim's path; false if the path is none.
func (s *Store) keyOf(path []byte) (allocator.Key, bool) {
	text, isClaim := strings.CutPrefix(string(path), s.claims)
	if !isClaim {
		return allocator.Key{}, false
	}
	k, err := allocator.ParseKey(text)
	return k, err == nil && k.String() == text
}

// decode reads a claim.
func (s *Store) decode(kv *mvccpb.KeyValue) (allocator.Claim, error) {
	k, isClaim := s.keyOf(kv.Key)
	if !isClaim {
		return allocator.Claim{}, fmt.Errorf("%s is no claim: %w", kv.Key, allocator.ErrInvalid)
	}
	var r record
	if err := json.Unmarshal(kv.Value, &r); err != nil {
		return allocator.Claim{}, fmt.Errorf("%s: %w", kv.Key, err)
	}
	c := allocator.Claim{Key: k, Owner: r.Owner, Token: r.Token, Version: allocator.Version(kv.ModRevision), Since: r.Since.UTC()}
	if r.Expires != nil {
		c.Expires = r.Expires.UTC()
	}
	return c, nil
}
