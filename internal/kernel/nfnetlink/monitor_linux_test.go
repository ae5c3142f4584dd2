package nfnetlink

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// newMonitor returns a monitor of the tables web and web_2, and the connection whose
// commits it ignores.
func newMonitor(t testing.TB) (*Conn, *Monitor) {
	t.Helper()
	c := openInNamespace(t)
	m, err := c.Monitor("web", "web_2")
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, m)
	if !m.Noticed() {
		t.Error("before Begin: noticed: got false, want true, because commits may have been missed")
	}
	begin(t, m)
	return c, m
}

func begin(t testing.TB, m *Monitor) {
	t.Helper()
	testenv.NoError(t, m.Begin())
	if m.Noticed() {
		t.Fatal("right after Begin: noticed: got true, want false")
	}
}

func noticed(t *testing.T, m *Monitor, what string, want bool) {
	t.Helper()
	testenv.Same(t, want, m.Noticed(), "after %s: noticed", what)
}

// The monitor notices every kind of change of its tables, and no change of other tables.
func TestMonitorNoticesItsTables(t *testing.T) {
	t.Parallel()
	_, m := newMonitor(t)
	for _, step := range []string{
		"add table ip TABLE",
		"add chain ip TABLE base { type nat hook prerouting priority 0; }",
		"add chain ip TABLE base { policy drop; }",
		"add chain ip TABLE plain",
		"add rule ip TABLE plain counter",
		"insert rule ip TABLE plain drop",
		"flush chain ip TABLE plain",
		"rename chain ip TABLE plain renamed",
		"add set ip TABLE numbers { type inet_service; }",
		"add element ip TABLE numbers { 1, 2 }",
		"delete element ip TABLE numbers { 1 }",
		"flush set ip TABLE numbers",
		"add map ip TABLE verdicts { type inet_service : verdict; }",
		"add element ip TABLE verdicts { 1 : drop }",
		"delete map ip TABLE verdicts",
		"add counter ip TABLE sum",
		"delete counter ip TABLE sum",
		"add table ip TABLE { flags dormant; }",
		"add table ip TABLE",
		"delete chain ip TABLE renamed",
		"delete table ip TABLE",
		"add table ip6 TABLE",
		"add table inet TABLE",
	} {
		for _, other := range []string{"we", "webs", "web_3", "beb", "somebody-elses-long-name"} {
			nft(t, strings.ReplaceAll(step, "TABLE", other))
			noticed(t, m, step+" as "+other, false)
		}
		for _, own := range []string{"web", "web_2"} {
			nft(t, strings.ReplaceAll(step, "TABLE", own))
			noticed(t, m, step+" as "+own, true)
			begin(t, m)
		}
	}
	nft(t, "flush ruleset")
	noticed(t, m, "a flush of the ruleset", true)
	begin(t, m)
	nft(t, "add table ip somebody-elses")
	nft(t, "flush ruleset")
	noticed(t, m, "a flush of a ruleset without own tables", false)
}

// The kernel puts many messages in one packet: the filter finds a watched table in all of
// them.
func TestMonitorFindsTablesAmongOthers(t *testing.T) {
	t.Parallel()
	c, m := newMonitor(t)
	other := open(t)
	for _, others := range []int{0, 1, 2, 7, 30, 60, 90, 200} {
		for _, own := range []string{"", "web"} {
			b, clean := manyTables(others, own)
			if b.Empty() {
				continue
			}
			commit(t, other, b)
			// A packet with more messages than the filter can check counts as noticed.
			if got := m.Noticed(); own != "" && !got || own == "" && got && others < 40 {
				t.Errorf("%d foreign tables and own table %q: noticed: got %t, want %t", others, own, got, own != "")
			}
			commit(t, c, b)
			begin(t, m)
			commit(t, c, b)
			noticed(t, m, "the same by its own connection", false)
			commit(t, c, clean)
		}
	}
}

// A signal, such as those by which Go preempts goroutines, does not count as a commit.
// It measures what one thread does with many signals, so it is alone.
func TestMonitorIgnoresSignals(t *testing.T) {
	t.Parallel()
	_, m := newMonitor(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread, stop := unix.Gettid(), make(chan struct{})
	var wg sync.WaitGroup
	sent := 0
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := unix.Tgkill(unix.Getpid(), thread, unix.SIGURG); err != nil {
				t.Error(err)
				return
			}
			sent++
		}
	})
	wrong, end := 0, time.Now().Add(time.Second)
	for time.Now().Before(end) {
		if m.Noticed() {
			wrong++
		}
	}
	close(stop)
	wg.Wait()
	if wrong > 0 || sent == 0 {
		t.Errorf("with %d signals: noticed: got true %d times, want never", sent, wrong)
	}
}

// manyTables adds foreign tables, and a watched one unless own is "".
func manyTables(others int, own string) (add, clean *Batch) {
	add, clean = &Batch{}, &Batch{}
	for i := range others {
		other := Table{Family: IPv4, Name: fmt.Sprintf("t%d", i%40)}
		add.AddTable(other)
		if n := i % 9; n > 0 { // messages differ in length
			add.buf = rawnetlink.AppendAttr(add.buf, 6, make([]byte, n)) // NFTA_TABLE_USERDATA
			add.end()
		}
		clean.DestroyTable(other)
	}
	if own != "" {
		add.AddTable(Table{Family: IPv6, Name: own})
		clean.DestroyTable(Table{Family: IPv6, Name: own})
	}
	return add, clean
}

// If there are more messages than fit into the socket, the commits are still noticed.
func TestMonitorOverflows(t *testing.T) {
	t.Parallel()
	_, m := newMonitor(t)
	testenv.NoError(t, m.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1) }))
	other := open(t)
	for range 100 {
		var b Batch
		b.AddTable(Table{Family: IPv4, Name: "web"})
		b.DelTable(Table{Family: IPv4, Name: "web"})
		testenv.NoError(t, other.Commit(t.Context(), &b))
	}
	noticed(t, m, "a hundred commits", true)
	noticed(t, m, "a first call of Noticed", true)
	begin(t, m)
}

// Wait ends when a commit is noticed, when its context ends, and when the monitor is
// closed.
func TestMonitorWaits(t *testing.T) {
	t.Parallel()
	_, m := newMonitor(t)
	closed := make(chan error, 1)
	wait := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- m.Wait(ctx) }()
		return ended
	}
	ended := wait(t.Context())
	nft(t, "add", "table", "ip", "somebody")
	select {
	case err := <-ended:
		t.Errorf("Wait after a commit to a foreign table: ended with %v, want it to wait", err)
	case <-time.After(50 * time.Millisecond):
	}
	nft(t, "add", "table", "ip", "web")
	if err := within(t, ended); err != nil {
		t.Errorf("Wait after a commit to a watched table: got error %v, want none", err)
	}
	if err := within(t, wait(t.Context())); err != nil {
		t.Errorf("Wait for a commit that was noticed already: got error %v, want none", err)
	}
	begin(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	ended = wait(ctx)
	cancel()
	if err := within(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with a context that ended: got error %v, want %v", err, context.Canceled)
	}
	if err := within(t, wait(ctx)); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with a context that had ended: got error %v, want %v", err, context.Canceled)
	}
	ended = wait(t.Context())
	m.missed.Store(true)
	m.wake()
	if err := within(t, ended); err != nil {
		t.Errorf("Wait after commits were missed: got error %v, want none", err)
	}
	begin(t, m)
	m, err := open(t).Monitor("web")
	testenv.NoError(t, err)
	begin(t, m)
	go func() { closed <- m.Wait(t.Context()) }()
	testenv.NoError(t, m.Close())
	if err := within(t, closed); err == nil {
		t.Error("Wait on a monitor that was closed: got no error, want one")
	}
}

// refused is a socket that Go's poller refuses to wait for.
type refused struct{ syscall.RawConn }

func (refused) Read(func(uintptr) bool) error { return errors.New("not pollable") }

// Wait ends for the same reasons if Go's poller refuses the socket, as it does after the
// kernel lacked memory for a message.
func TestMonitorWaitsWithoutPoller(t *testing.T) {
	t.Parallel()
	_, m := newMonitor(t)
	m.raw = refused{m.raw}
	wait := func(ctx context.Context, m *Monitor) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- m.Wait(ctx) }()
		return ended
	}
	ended := wait(t.Context(), m)
	nft(t, "add", "table", "ip", "web")
	if err := within(t, ended); err != nil {
		t.Errorf("Wait for a commit to a watched table: got error %v, want none", err)
	}
	if err := within(t, wait(t.Context(), m)); err != nil {
		t.Errorf("Wait after a commit to a watched table: got error %v, want none", err)
	}
	begin(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	ended = wait(ctx, m)
	cancel()
	if err := within(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with a context that ended: got error %v, want %v", err, context.Canceled)
	}
	m, err := open(t).Monitor("web")
	testenv.NoError(t, err)
	begin(t, m)
	m.raw = refused{m.raw}
	ended = wait(t.Context(), m)
	testenv.NoError(t, m.Close())
	if err := within(t, ended); err == nil {
		t.Error("Wait on a monitor that was closed: got no error, want one")
	}
}

func within(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("Wait: still running after 10 s, want it to end")
		return nil
	}
}

// largeBatch fills a set of a table with so many elements that the monitor does not listen
// during the commit.
func largeBatch(table Table) *Batch {
	var b Batch
	b.AddTable(table)
	b.AddSet(table, &Set{Name: "s", Key: []Selector{SourceAddr}})
	w := b.Elements(OpAdd, table, "s")
	for i := range 5000 {
		w.Key([]byte{10, 1, byte(i >> 8), byte(i)})
	}
	return &b
}

// A large commit, during which the monitor does not listen, hides no commit of another
// connection.
func TestMonitorNoticesCommitsBesideLargeOnes(t *testing.T) {
	t.Parallel()
	c, m := newMonitor(t)
	web := Table{Family: IPv4, Name: "web"}
	b := largeBatch(web)
	if b.Len() < bulk {
		t.Fatalf("length of the test's batch: got %d bytes, want at least %d", b.Len(), bulk)
	}
	commit := func(b *Batch) {
		t.Helper()
		testenv.NoError(t, c.Commit(t.Context(), b))
	}
	commit(b)
	noticed(t, m, "a large commit alone", false)
	nft(t, "add", "chain", "ip", "web", "one")
	commit(b)
	noticed(t, m, "a foreign commit and a large one", true)
	begin(t, m)
	commit(b)
	nft(t, "add", "chain", "ip", "web", "two")
	noticed(t, m, "a large commit and a foreign one", true)
	begin(t, m)

	// A foreign commit while the monitor does not listen shows in the generation.
	ended := make(chan error, 1)
	go func() { ended <- m.Wait(t.Context()) }()
	err := m.Pause(t.Context(), func() (int, error) {
		nft(t, "add", "table", "ip", "somebody")
		return 1, c.Commit(t.Context(), b)
	})
	testenv.NoError(t, err)
	noticed(t, m, "a foreign commit during a large one", true)
	if err := within(t, ended); err != nil {
		t.Errorf("Wait after a foreign commit during a large one: got error %v, want none", err)
	}
	begin(t, m)

	// A refused commit changes nothing.
	bad := largeBatch(web)
	bad.DelTable(Table{Family: IPv4, Name: "there-is-none"})
	if err := c.Commit(t.Context(), bad); err == nil {
		t.Fatal("commit of a wrong batch: got no error, want one")
	}
	noticed(t, m, "a large commit that was refused", false)
}
