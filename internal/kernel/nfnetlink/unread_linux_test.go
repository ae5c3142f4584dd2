package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// endingContext is a context that ends after some calls of Err.
type endingContext struct {
	context.Context
	calls int
}

func (c *endingContext) Err() error {
	if c.calls--; c.calls < 0 {
		return context.Canceled
	}
	return nil
}

// callsOfKinds returns calls of all kinds, for a table web with one chain and a number of rules.
// They return an error if they fail, or succeed with a wrong result.
func callsOfKinds(generation uint32, rules int) map[string]func(context.Context, *Conn) error {
	web := Table{Family: IPv4, Name: "web"}
	var refused Batch
	refused.DelChain(web, "none")
	expect := func(err, want error) error {
		if errors.Is(err, want) {
			return nil
		}
		return err
	}
	check := func(err error, want, got any) error {
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			err = fmt.Errorf("result (-want +got):\n%s", diff)
		}
		return err
	}
	return map[string]func(context.Context, *Conn) error{
		"generation": func(ctx context.Context, c *Conn) error {
			got, err := c.Generation(ctx)
			return check(err, generation, got)
		},
		"all rules": func(ctx context.Context, c *Conn) error {
			n := 0
			err := c.Rules(ctx, web, Visitor[RuleInfo]{Begin: func() { n = 0 }, Each: func(*RuleInfo) error { n++; return nil }})
			return check(err, rules, n)
		},
		"some rules": func(ctx context.Context, c *Conn) error {
			return expect(c.Rules(ctx, web, Visitor[RuleInfo]{Each: func(*RuleInfo) error { return io.EOF }}), io.EOF)
		},
		"tables": func(ctx context.Context, c *Conn) error {
			var got []TableInfo
			err := c.Tables(ctx, IPv4, Collect(&got))
			return check(err, []TableInfo{{Name: "web"}}, got)
		},
		"commit": func(ctx context.Context, c *Conn) error { return expect(c.Commit(ctx, &refused), unix.ENOENT) },
	}
}

// openSmall opens a connection with a receive buffer of a size. A call that waits for a lost
// reply takes the time patience.
func openSmall(t *testing.T, size int, patience time.Duration) *Conn {
	t.Helper()
	c := open(t)
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptTimeval(c.socket.FD(), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptInt(c.socket.FD(), unix.SOL_SOCKET, unix.SO_RCVBUF, size),
	); err != nil {
		t.Fatal(err)
	}
	return c
}

// Calls that end before they have read all replies do not affect later calls, however small
// the receive buffer is: the later calls succeed, and wait for nothing.
func TestUnreadReplies(t *testing.T) {
	t.Parallel()
	const rounds, rules, patience = 60, 300, 20 * time.Second
	r := testenv.Random(t)
	first := openInNamespace(t)
	loadNft(t, "table ip web { chain a {\n"+strings.Repeat("ip daddr 192.0.2.1 counter drop\n", rules)+"}\n}\n")
	generation, err := first.Generation(t.Context())
	testenv.NoError(t, err)
	calls := callsOfKinds(generation, rules)
	names := slices.Sorted(maps.Keys(calls))
	for range rounds {
		size := 4096 << r.IntN(6)
		c := openSmall(t, size, patience)
		var done []string
		for range r.IntN(25) {
			name := names[r.IntN(len(names))]
			err := calls[name](&endingContext{t.Context(), 1 + r.IntN(4)}, c)
			done = append(done, fmt.Sprintf("%s: %v", name, err))
		}
		for range 4 {
			name, begin := names[r.IntN(len(names))], time.Now()
			if err := calls[name](t.Context(), c); err != nil || time.Since(begin) >= patience {
				t.Fatalf("%s with a receive buffer of %d bytes took %v: got error %v, want none; calls before:\n%s",
					name, size, time.Since(begin), err, strings.Join(done, "\n"))
			}
		}
	}
}

// If the receive buffer is full of unread replies, the reply to a transaction is lost,
// although the kernel has applied the transaction.
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	smallReceiveBuffer(t, c)
	table := Table{Family: IPv4, Name: "vip"}
	for range 100 {
		if _, err := c.ask(t.Context(), query{typ: unix.NFT_MSG_GETGEN}, 0); err != nil {
			t.Fatal(err)
		}
	}
	c.unread = 0 // Otherwise, the connection would read them first.
	var b Batch
	b.AddTable(table)
	if err := c.Commit(t.Context(), &b); !errors.Is(err, ErrUnknownOutcome) {
		t.Fatalf("Commit with a full receive buffer: got %v, want ErrUnknownOutcome", err)
	}
	var got []TableInfo
	testenv.NoError(t, c.Tables(t.Context(), IPv4, Collect(&got)))
	testenv.Same(t, []TableInfo{{Name: "vip"}}, got, "tables")
	commit(t, c, &b)
}
