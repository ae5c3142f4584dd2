package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// The error of a refused transaction names the wrong object, and the transaction changes
// nothing.
func TestCommitErrors(t *testing.T) { //nolint:funlen // a table
	t.Parallel()
	table := Table{Family: IPv4, Name: "vip"}
	service := concat("10.96.0.1", tcp, uint16(80))
	otherService := concat("10.96.0.2", tcp, uint16(80))
	tests := []struct {
		name  string
		build func(b *Batch)
		want  Error // without Detail
	}{
		{
			name:  "no such table",
			build: func(b *Batch) { b.DelTable(Table{Family: IPv6, Name: "none"}) },
			want:  Error{Errno: unix.ENOENT, Op: "delete table", Table: Table{Family: IPv6, Name: "none"}, Attr: unix.NFTA_TABLE_NAME},
		},
		{
			name: "no such set, in the second message",
			build: func(b *Batch) {
				b.AddChain(table, Chain{Name: "new"})
				w := b.Elements(OpAdd, table, "none")
				w.Key(service)
			},
			want: Error{Errno: unix.ENOENT, Op: "add elements to", Table: table, Object: "none"},
		},
		{
			name: "an element that does not exist",
			build: func(b *Batch) {
				w := b.Elements(OpDelete, table, "services")
				w.Key(service)
				w.Key(otherService)
			},
			want: Error{Errno: unix.ENOENT, Op: "delete elements of", Table: table, Object: "services", Key: otherService},
		},
		{
			name: "an element that exists with other data",
			build: func(b *Batch) {
				w := b.Elements(OpAdd, table, "services")
				w.KeyVerdict(otherService, VerdictGoto, "pick-2")
				w.KeyVerdict(service, VerdictDrop, "")
			},
			want: Error{Errno: unix.EEXIST, Op: "add elements to", Table: table, Object: "services", Key: service},
		},
		{
			name: "an element with a goto to no chain",
			build: func(b *Batch) {
				w := b.Elements(OpAdd, table, "services")
				w.KeyVerdict(otherService, VerdictGoto, "none")
			},
			want: Error{Errno: unix.ENOENT, Op: "add elements to", Table: table, Object: "services", Key: otherService},
		},
		{
			name: "a key of the wrong length",
			build: func(b *Batch) {
				w := b.Elements(OpAdd, table, "pods")
				w.Key([]byte{1, 2, 3, 4, 5, 6, 7, 8})
			},
			want: Error{Errno: unix.EINVAL, Op: "add elements to", Table: table, Object: "pods", Key: []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		},
		{
			name:  "a chain in use",
			build: func(b *Batch) { b.DelChain(table, "pick-2") },
			want:  Error{Errno: unix.EBUSY, Op: "delete chain", Table: table, Object: "pick-2", Attr: unix.NFTA_CHAIN_NAME},
		},
		{
			name:  "a base chain with another hook",
			build: func(b *Batch) { b.AddChain(table, Chain{Name: "check", Base: BaseChain{Type: "filter", Priority: 5}}) },
			want:  Error{Errno: unix.EOPNOTSUPP, Op: "add chain", Table: table, Object: "check"},
		},
		{
			name:  "a base chain of no type",
			build: func(b *Batch) { b.AddChain(table, Chain{Name: "typeless", Base: BaseChain{Type: "none"}}) },
			want:  Error{Errno: unix.ENOENT, Op: "add chain", Table: table, Object: "typeless", Attr: unix.NFTA_CHAIN_TYPE},
		},
		{
			name:  "a chain in no table",
			build: func(b *Batch) { b.AddChain(Table{Family: IPv6, Name: "none"}, Chain{Name: "check"}) },
			want:  Error{Errno: unix.ENOENT, Op: "add chain", Table: Table{Family: IPv6, Name: "none"}, Object: "check", Attr: unix.NFTA_CHAIN_TABLE},
		},
		{
			name:  "a set with another key",
			build: func(b *Batch) { b.AddSet(table, &Set{Name: "services", Key: []Selector{DestPort}}) },
			want:  Error{Errno: unix.EEXIST, Op: "add set", Table: table, Object: "services", Attr: unix.NFTA_SET_NAME},
		},
		{
			name: "a lookup in no set",
			build: func(b *Batch) {
				addRule(b, table, "check", []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "none"}})
			},
			want: Error{Errno: unix.ENOENT, Op: "add rule to", Table: table, Object: "check", Attr: unix.NFTA_EXPR_NAME},
		},
		{
			name:  "a flush of a chain that does not exist",
			build: func(b *Batch) { b.FlushChain(table, "none") },
			want:  Error{Errno: unix.ENOENT, Op: "delete rules of", Table: table, Object: "none", Attr: unix.NFTA_RULE_CHAIN},
		},
		{
			name: "a loop",
			build: func(b *Batch) {
				b.AddChain(table, Chain{Name: "round"})
				addRule(b, table, "check", []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "round"}})
				b.AddSet(table, &Set{Name: "loops", Key: []Selector{DestPort}, Verdicts: true})
				w := b.Elements(OpAdd, table, "loops")
				w.KeyVerdict([]byte{0, 80}, VerdictGoto, "round")
				addRule(b, table, "round", []expr.Any{
					&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
					&expr.Lookup{SourceRegister: 1, SetName: "loops", IsDestRegSet: true},
				})
			},
			want: Error{Errno: unix.EMLINK, Op: "add rule to", Table: table, Object: "round"},
		},
	}
	c := openInNamespace(t)
	newBalancer(t, c, table)
	before := nft(t, "list", "ruleset")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b Batch
			tt.build(&b)
			err := c.Commit(context.Background(), &b)
			var got *Error
			if !errors.As(err, &got) {
				t.Fatalf("Commit: got %v, want an *Error like %v", err, &tt.want)
			}
			if !errors.Is(err, tt.want.Errno) {
				t.Errorf("errors.Is(%v, %v): got false, want true", err, tt.want.Errno)
			}
			got.Detail = ""
			testenv.Same(t, tt.want, *got, "error")
		})
	}
	if diff := cmp.Diff(before, nft(t, "list", "ruleset")); diff != "" {
		t.Errorf("refused transactions changed the ruleset (-before +after):\n%s", diff)
	}
	var b Batch
	b.AddChain(table, Chain{Name: "afterwards"})
	commit(t, c, &b)
}

// Commit sends nothing if the batch is empty, wrong or too long, or if the context has
// ended. The connection has no socket, so that a system call would fail.
func TestCommitWithoutSystemCall(t *testing.T) {
	t.Parallel()
	table := Table{Family: IPv4, Name: "vip"}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	tests := []struct {
		name  string
		ctx   context.Context
		build func(b *Batch)
		max   int
		want  error
	}{
		{name: "empty", ctx: context.Background(), build: func(*Batch) {}},
		{name: "cancelled", ctx: cancelled, build: func(b *Batch) { b.DelTable(table) }, max: 1000, want: context.Canceled},
		{name: "wrong", ctx: context.Background(), build: func(b *Batch) { b.AddTable(Table{}) }, max: 1000, want: errName},
		{
			name: "too long", ctx: context.Background(), max: 67,
			build: func(b *Batch) { b.DelTable(table) }, want: &SizeError{Size: 68, Max: 67},
		},
		{name: "fits", ctx: context.Background(), build: func(b *Batch) { b.DelTable(table) }, max: 68, want: unix.EBADF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &Conn{socket: closedSocket(t), max: tt.max}
			var b Batch
			tt.build(&b)
			err := c.Commit(tt.ctx, &b)
			if size, ok := errors.AsType[*SizeError](tt.want); ok {
				got, ok := errors.AsType[*SizeError](err)
				if !ok || *got != *size {
					t.Errorf("Commit: got %v, want %v", err, tt.want)
				}
				return
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("Commit: got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestConnInUseAndClosed(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	newBalancer(t, c, table)
	var b Batch
	b.DelTable(table)
	var inside []error
	err := c.Tables(t.Context(), IPv4, Visitor[TableInfo]{Each: func(*TableInfo) error {
		_, err := c.Generation(t.Context())
		inside = append(inside, c.Commit(t.Context(), &b), c.Close(), err)
		return nil
	}})
	if err != nil || len(inside) != 3 {
		t.Fatalf("Tables: got %v and %d calls inside, want nil and 3", err, len(inside))
	}
	for i, err := range inside {
		if !errors.Is(err, ErrBusy) {
			t.Errorf("call %d inside of a dump: got %v, want ErrBusy", i, err)
		}
	}

	other, err := Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := other.Commit(t.Context(), &b); !errors.Is(err, ErrClosed) {
		t.Errorf("Commit on a closed connection: got %v, want ErrClosed", err)
	}
	if err := other.Tables(t.Context(), IPv4, Visitor[TableInfo]{}); !errors.Is(err, ErrClosed) {
		t.Errorf("Tables on a closed connection: got %v, want ErrClosed", err)
	}
}

// The connection stays with the namespace in which it was opened.
func TestConnKeepsItsNamespace(t *testing.T) {
	t.Parallel()
	first := openInNamespace(t)
	second := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	var b Batch
	b.AddTable(table)
	commit(t, first, &b)
	for want, c := range map[int]*Conn{1: first, 0: second} {
		var tables []TableInfo
		if err := c.Tables(t.Context(), IPv4, Collect(&tables)); err != nil || len(tables) != want {
			t.Errorf("Tables: got %d, error %v, want %d", len(tables), err, want)
		}
	}
}

// Adding an object that exists keeps it.
func TestAddingAgain(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	newBalancer(t, c, table)
	before := nft(t, "list", "ruleset")
	var b Batch
	b.AddTable(table)
	b.AddChain(table, Chain{Name: "pick-2"})
	for _, s := range balancerSets() {
		b.AddSet(table, s)
	}
	addBalancerElements(&b, table)
	commit(t, c, &b)
	if diff := cmp.Diff(before, nft(t, "list", "ruleset")); diff != "" {
		t.Errorf("adding again changed the ruleset (-before +after):\n%s", diff)
	}
}

// A set accepts as many elements as its size, and the error names the first excess one.
func TestSetIsFull(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	var b Batch
	b.AddTable(table)
	b.AddSet(table, &Set{Name: "s", Key: []Selector{SourceAddr}, Size: 2})
	w := b.Elements(OpAdd, table, "s")
	w.Key([]byte{192, 0, 2, 1})
	w.Key([]byte{192, 0, 2, 2})
	commit(t, c, &b)
	b.Reset()
	w = b.Elements(OpAdd, table, "s")
	w.Key([]byte{192, 0, 2, 3})
	var e *Error
	err := c.Commit(t.Context(), &b)
	if !errors.As(err, &e) || e.Errno != unix.ENFILE || !slices.Equal(e.Key, []byte{192, 0, 2, 3}) {
		t.Errorf("a third element in a set of size 2: got %v, want ENFILE and its key", err)
	}
}

// A batch can be committed again after it was refused, and extended after it
// was committed.
func TestBatchIsKeptByCommit(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	table := Table{Family: IPv4, Name: "vip"}
	var b, first Batch
	b.AddChain(table, Chain{Name: "a"})
	if err := c.Commit(t.Context(), &b); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("Commit without the table: got %v, want ENOENT", err)
	}
	first.AddTable(table)
	commit(t, c, &first)
	commit(t, c, &b)
	b.AddChain(table, Chain{Name: "b"})
	commit(t, c, &b)
	var got []Chain
	testenv.NoError(t, c.Chains(t.Context(), table, Collect(&got)))
	testenv.Same(t, []Chain{{Name: "a"}, {Name: "b"}}, got, "chains")
}

func smallReceiveBuffer(t *testing.T, c *Conn) {
	t.Helper()
	if err := unix.SetsockoptInt(c.socket.FD(), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatalf("make the receive buffer small: %v", err)
	}
}

// Thousands of errors overflow the receive buffer. Commit still returns the first one, and
// the rest does not disturb the next commit.
func TestManyErrors(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	smallReceiveBuffer(t, c)
	table := Table{Family: IPv4, Name: "vip"}
	var b, good Batch
	good.AddTable(table)
	b.AddTable(table)
	for i := range 5000 {
		b.DelChain(table, fmt.Sprint("none-", i))
	}
	for range 3 {
		err := c.Commit(t.Context(), &b)
		var e *Error
		if !errors.As(err, &e) || e.Errno != unix.ENOENT || e.Object != "none-0" {
			t.Fatalf("Commit: got %v, want ENOENT for the first chain", err)
		}
		commit(t, c, &good)
	}
}
