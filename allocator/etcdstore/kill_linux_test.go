package etcdstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/internal/servertest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// victimVariable in the environment makes the test program run victim. It has the URL of
// etcd and a name, separated by a space.
const victimVariable = "ETCDSTORE_TEST_VICTIM"

const (
	ttl      = 2 * time.Second
	victims  = 3
	kills    = 12
	patience = time.Minute
)

func TestMain(m *testing.M) {
	if url, name, isVictim := strings.Cut(os.Getenv(victimVariable), " "); isVictim {
		// The victim ends when its test ends and closes this pipe.
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
		fmt.Println("failed", name, victim(url, name))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func contested() allocator.Config {
	return allocator.Config{Prefix: netip.MustParsePrefix("10.96.0.0/25")}
}

func openPool(client *clientv3.Client) (*etcdstore.Store, *allocator.Pool, error) {
	s, err := etcdstore.New(client, prefix, contested())
	if err != nil {
		return nil, nil, err
	}
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: []allocator.Config{contested()}, TTL: ttl})
	return s, p, err
}

// victim allocates and frees keys until it is killed. It prints a key after it has bound it,
// and again before it frees it.
func victim(url, name string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop(), DialTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	_, p, err := openPool(client)
	if err != nil {
		return err
	}
	go func() { _ = p.Run(context.Background()) }() // It ends with the process.
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				live(p, allocator.Owner(fmt.Sprintf("%s/%d/%d", name, worker, i)))
			}
		})
	}
	wg.Wait()
	return errors.New("all workers have ended")
}

// live reserves, binds and releases a key of one owner. It ends at the first error; the test
// releases the keys that this leaves when it has killed the process.
func live(p *allocator.Pool, owner allocator.Owner) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	claims, err := p.Reserve(ctx, owner, allocator.Request{Kind: allocator.IPv4})
	if err != nil {
		return
	}
	if claims, err = p.Bind(ctx, claims...); err != nil {
		return
	}
	fmt.Println("bound", claims[0].Key, owner)
	fmt.Println("freeing", claims[0].Key, owner)
	_ = p.Release(ctx, claims...) // See above.
}

// killTest runs victims. They all write into one pipe, so the line of a victim that frees a
// key precedes the line of the next victim that binds it.
type killTest struct {
	t       *testing.T
	url     string
	out     *os.File
	lines   *bufio.Reader
	store   *etcdstore.Store
	pool    *allocator.Pool
	owners  map[string]string // by key
	running []*exec.Cmd
	started int
	bound   int
}

func newKillTest(t *testing.T, url string) *killTest {
	t.Helper()
	in, out, err := os.Pipe()
	testenv.NoError(t, err)
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), out.Close()); err != nil {
			t.Error(err)
		}
	})
	a := &killTest{t: t, url: url, out: out, lines: bufio.NewReader(in), owners: map[string]string{}}
	if a.store, a.pool, err = openPool(connect(t, url)); err != nil {
		t.Fatal(err)
	}
	testenv.NoError(t, a.store.Create(t.Context()))
	return a
}

// start starts a victim.
func (a *killTest) start() {
	a.t.Helper()
	a.started++
	cmd := exec.CommandContext(a.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s victim-%d", victimVariable, a.url, a.started))
	cmd.Stdout = a.out
	if _, err := cmd.StdinPipe(); err != nil {
		a.t.Fatal(err)
	}
	testenv.NoError(a.t, cmd.Start())
	a.running = append(a.running, cmd)
}

// kill kills a victim, and reads all lines that it has written.
func (a *killTest) kill(i int) {
	a.t.Helper()
	cmd := a.running[i]
	a.running = append(a.running[:i], a.running[i+1:]...)
	testenv.NoError(a.t, cmd.Process.Kill())
	dead := make(chan string, 1)
	go func() { // The victim may wait until its lines are read.
		_ = cmd.Wait() // It was killed.
		_, name, _ := strings.Cut(cmd.Env[len(cmd.Env)-1], " ")
		dead <- name
		_, _ = fmt.Fprintln(a.out, "dead -", name) // If it fails, read reports a failure.
	}()
	a.read(func(words []string) bool { return words[0] == "dead" })
	a.checkKilled(<-dead)
}

// read reads the lines of victims until isLast accepts one.
func (a *killTest) read(isLast func(words []string) bool) {
	a.t.Helper()
	for {
		line, err := a.lines.ReadString('\n')
		words := strings.Fields(line)
		if err != nil || len(words) != 3 {
			a.t.Fatalf("line of a victim: got %q, error %v, want three words", line, err)
		}
		key, owner := words[1], words[2]
		switch words[0] {
		case "bound":
			if other, isHeld := a.owners[key]; isHeld {
				a.t.Errorf("%s has two owners: %s and %s", key, other, owner)
			}
			a.owners[key] = owner
			a.bound++
		case "freeing":
			delete(a.owners, key)
		case "dead":
		default:
			a.t.Fatalf("line of a victim: got %q, want bound, freeing or dead", line)
		}
		if isLast(words) {
			return
		}
	}
}

// checkKilled checks that the store has the keys that a killed victim has printed as bound,
// and frees its claims.
func (a *killTest) checkKilled(name string) {
	a.t.Helper()
	state, err := a.store.Load(a.t.Context())
	testenv.NoError(a.t, err)
	held := map[string]allocator.Claim{}
	for _, c := range state.Claims {
		held[c.Key.String()] = c
	}
	for key, owner := range a.owners {
		if !strings.HasPrefix(owner, name+"/") {
			continue
		}
		if c := held[key]; string(c.Owner) != owner || !c.IsBound() {
			a.t.Errorf("claim of %s: got %+v, want a bound one of %s", key, c, owner)
		}
		delete(a.owners, key)
	}
	for _, c := range held {
		if strings.HasPrefix(string(c.Owner), name+"/") && c.IsBound() {
			if err := a.pool.Release(a.t.Context(), c); err != nil {
				a.t.Errorf("releasing a key of %s: %v", name, err)
			}
		}
	}
}

// TestKill kills processes that share a map, several times, and restarts etcd. No key may
// have two owners, and no claim may be left when all processes were killed.
func TestKill(t *testing.T) {
	rnd := testenv.Random(t)
	etcd := servertest.StartEtcd(t)
	a := newKillTest(t, etcd.URL)
	for range victims {
		a.start()
	}
	for round := range kills {
		for left := 20 + rnd.IntN(100); left > 0; left-- {
			a.read(func(words []string) bool { return words[0] == "bound" })
		}
		if round%5 == 4 {
			etcd.Restart()
		}
		a.kill(rnd.IntN(len(a.running)))
		a.start()
	}
	for len(a.running) > 0 {
		a.kill(0)
	}
	t.Logf("%d owners, %d kills", a.bound, a.started)
	awaitNoClaims(t, a)
}

// awaitNoClaims waits until the reservations of killed victims have ended. etcd can bind a key
// after its victim was killed, if the request was in flight. A repair would free it;
// awaitNoClaims does that itself.
func awaitNoClaims(t *testing.T, a *killTest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = a.pool.Run(running) }) // It ends with its context.
	defer wg.Wait()
	defer stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		state, err := a.store.Load(ctx)
		testenv.NoError(t, err)
		if len(state.Claims) == 0 {
			return
		}
		for _, c := range state.Claims {
			if !c.IsBound() {
				continue
			}
			t.Logf("%v was bound for %s, which was killed", c.Key, c.Owner)
			testenv.NoError(t, a.pool.Release(ctx, c))
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("claims after %v: got %v, want none", patience, state.Claims)
		}
	}
}
