package storm

import (
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/agenttest"
	"github.com/vipkit/vipkit/internal/netns"
)

// patience bounds each wait for an agent.
const patience = 30 * time.Second

// process is an agent that runs. Only the goroutine of the test uses it.
type process struct {
	*agenttest.Program
	changes *os.File
	reading sync.WaitGroup
	calls   *calls // nil unless they are watched
	ended   atomic.Bool
	starved bool // It lacked something for a while, so that it may have ended.
}

// startAgent starts an agent, which calls heard for each of its events.
func startAgent(t testing.TB, node *netns.NS, o *agentOptions, heard func(event)) *process {
	t.Helper()
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	changesOut, changesIn, errChanges := os.Pipe()
	eventsOut, eventsIn, errEvents := os.Pipe()
	if err := errors.Join(errChanges, errEvents); err != nil {
		t.Fatal(err)
	}
	cmd := agenttest.Command(t, string(options))
	cmd.ExtraFiles = []*os.File{changesFile - 3: changesOut, eventsFile - 3: eventsIn}
	p := &process{changes: changesIn}
	t.Cleanup(func() { // when the program has ended
		_ = p.changes.Close() // It may have been killed before.
		p.reading.Wait()
		p.endCalls()
	})
	p.Program = agenttest.Start(t, node, patience, cmd)
	if err := errors.Join(changesOut.Close(), eventsIn.Close()); err != nil {
		t.Fatal(err)
	}
	p.reading.Go(func() {
		defer eventsOut.Close() //nolint:errcheck // it was for reading only
		for d := json.NewDecoder(eventsOut); ; {
			var e event
			if d.Decode(&e) != nil {
				p.ended.Store(true)
				return
			}
			heard(e)
		}
	})
	if o.Watched {
		if p.calls, err = watchCalls(p.ID(), o.Small); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *process) endCalls() {
	if p.calls != nil {
		p.calls.work.Wait()
	}
}

// send tells the agent something. One that cannot hear it is started anew some time.
func (p *process) send(m *message) error {
	if err := p.changes.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	return json.NewEncoder(p.changes).Encode(m)
}

// kill ends the agent at once.
func (p *process) kill() {
	p.Kill()
	p.reading.Wait()
	p.endCalls()
	_ = p.changes.Close() // Nobody reads it any more.
}
