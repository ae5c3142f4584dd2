package storm

import (
	"encoding/json"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// patience bounds each wait for an agent.
const patience = 30 * time.Second

// process is a running agent. Only the goroutine of the test uses it.
type process struct {
	*agenttest.Program
	changes *os.File
	reading sync.WaitGroup
	calls   *calls // nil unless its system calls are watched
	ended   atomic.Bool
	mayEnd  bool // A fault has made its system calls fail, so it may end.
}

// startAgent starts an agent, and calls onEvent for each of its events.
func startAgent(t testing.TB, node *netns.NS, o *agentOptions, onEvent func(event)) *process {
	t.Helper()
	options, err := json.Marshal(o)
	testenv.NoError(t, err)
	changesOut, changesIn, errChanges := os.Pipe()
	eventsOut, eventsIn, errEvents := os.Pipe()
	testenv.NoError(t, errors.Join(errChanges, errEvents))
	cmd := agenttest.Command(t, string(options))
	cmd.ExtraFiles = []*os.File{changesFile - 3: changesOut, eventsFile - 3: eventsIn}
	p := &process{changes: changesIn}
	t.Cleanup(func() { // runs when the program has ended
		_ = p.changes.Close() // It may have been killed before.
		p.reading.Wait()
		p.endCalls()
	})
	p.Program = agenttest.Start(t, node, patience, cmd)
	testenv.NoError(t, errors.Join(changesOut.Close(), eventsIn.Close()))
	p.reading.Go(func() {
		defer eventsOut.Close() //nolint:errcheck // it was for reading only
		for d := json.NewDecoder(eventsOut); ; {
			var e event
			if d.Decode(&e) != nil {
				p.ended.Store(true)
				return
			}
			onEvent(e)
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

// send sends a message to the agent. If that fails because the agent has ended, the next
// agent gets the whole model when it starts.
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
	_ = p.changes.Close() // The agent no longer reads it.
}
