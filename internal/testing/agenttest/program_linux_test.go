package agenttest

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const patience = 2 * time.Minute

func startAgent(t testing.TB, args ...string) *Program {
	t.Helper()
	return Start(t, netnstest.NewNS(t), patience, Command(t, args...))
}

func TestProgram(t *testing.T) {
	t.Parallel()
	p := startAgent(t, "page")
	p.Await("part=2", "msg=later")
	if ready, none := p.Count("part=1", "msg=ready"), p.Count("part=1", "msg=later"); ready != 1 || none != 0 {
		t.Errorf("got %d lines with all parts and %d with parts of two lines, want 1 and 0", ready, none)
	}
	p.AwaitPage("http://"+pageAddress+"/", "404", "page not found")
	p.Terminate("all is well")
}

func TestStatus(t *testing.T) {
	t.Parallel()
	if got := startAgent(t, "0").Wait(); got != 0 {
		t.Errorf("got status %d, want 0", got)
	}
	p := startAgent(t, "7")
	p.Await("dying")
	p.Signal(syscall.SIGTERM)
	if got := p.Wait(); got != 7 {
		t.Errorf("got status %d, want 7", got)
	}
	p = startAgent(t, "stubborn")
	p.patience = 500 * time.Millisecond
	if got := p.Wait(); got != -1 {
		t.Errorf("a program that does not end: got status %d, want -1 (killed)", got)
	}
}

// A failed expectation ends the test with what is missing.
func TestFailures(t *testing.T) {
	t.Parallel()
	hurry := func(p *Program) { p.patience = 500 * time.Millisecond }
	for _, c := range []struct {
		name, arg string
		do        func(p *Program)
		want      string
	}{
		{"no such line", "page", func(p *Program) {
			p.Await("ready")
			hurry(p)
			p.AwaitEach([]string{"part=2", "later"}, []string{"other"})
		}, `no lines with [["other"]] are logged within 500ms`},
		{"an early end", "0", func(p *Program) { p.Await("other") }, "ended without logging"},
		{"another status", "7", func(p *Program) { p.Await("dying"); p.Terminate("dying") }, "got status 7 and 1 lines with"},
		{"another last line", "wait", func(p *Program) { p.Await("ready"); p.Terminate("other") }, "got status 0 and 0 lines with"},
		{"no such page", "page", func(p *Program) {
			p.Await("later")
			hurry(p)
			p.AwaitPage("http://"+pageAddress+"/", "200")
		}, `got no page with ["200"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := startAgent(t, c.arg)
			said := testenv.Record(t, func(r testing.TB) {
				p.t = r
				c.do(p)
			})
			p.t = t
			if len(said) != 1 || !strings.Contains(said[0], c.want) {
				t.Errorf("failures: got %q, want one with %q", said, c.want)
			}
		})
	}
}
