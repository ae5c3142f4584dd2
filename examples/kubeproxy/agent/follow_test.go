package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// lookPatience bounds waits for a follower.
const lookPatience = time.Minute

// followed is a follower whose test decides when it looks.
type followed struct {
	path    string
	looks   chan time.Time
	hangups chan os.Signal
	ended   chan error
	level   *slog.LevelVar

	mu  sync.Mutex
	out strings.Builder
}

func (f *followed) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(b)
}

// log returns what was logged since the last call.
func (f *followed) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := f.out.String()
	f.out.Reset()
	return text
}

func (f *followed) write(t *testing.T, settings string) {
	t.Helper()
	testenv.NoError(t, os.WriteFile(f.path, []byte(header+settings), 0o600))
}

// look makes the follower look n times, and returns what it has logged.
func (f *followed) look(t *testing.T, n int) string {
	t.Helper()
	for range n + 1 { // The last one begins when the one before has ended.
		select {
		case f.looks <- time.Time{}:
		case err := <-f.ended:
			f.ended <- err
			return f.log()
		case <-time.After(lookPatience):
			t.Fatal("the follower does not look")
		}
	}
	return f.log()
}

func follow(t *testing.T, settings string, flags ...string) *followed {
	t.Helper()
	f := &followed{
		path: filepath.Join(t.TempDir(), "config.yaml"), looks: make(chan time.Time), hangups: make(chan os.Signal),
		ended: make(chan error, 1), level: new(slog.LevelVar),
	}
	f.write(t, settings)
	args := append([]string{"-config", f.path}, flags...)
	c, err := newConfig("linux").readCommandLine(args, f)
	testenv.NoError(t, err)
	follower := follower{args: args, config: c, log: slog.New(slog.NewTextHandler(f, nil)), level: f.level}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { f.ended <- follower.run(ctx, f.hangups, f.looks) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-f.ended:
			if err != nil && !errors.Is(err, errRestart) {
				t.Error(err)
			}
		case <-time.After(lookPatience):
			t.Error("the follower does not end")
		}
	})
	return f
}

// unchanged are settings that change no parameter of this machine.
const unchanged = "mode: nftables\nconntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n"

// TestFollow checks that a live field is applied once, that a file is read when it is complete, and that
// errors are logged once and change nothing.
func TestFollow(t *testing.T) {
	t.Parallel()
	f := follow(t, unchanged+"logging: {verbosity: 1}\n")
	want := func(what, got string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: got log\n%s\nwant %s", what, got, part)
			}
		}
		if len(parts) == 0 && got != "" {
			t.Errorf("%s: got log\n%s\nwant none", what, got)
		}
	}
	want("no change", f.look(t, 3))
	f.write(t, unchanged+"logging: {verbosity: 3}\nunknown: 1\n")
	want("a change", f.look(t, 3), `msg="configuration file applied" changed=logging.verbosity`, "field unknown is unknown")
	if got := f.level.Level(); got != -3 {
		t.Errorf("level: got %v, want -3", got)
	}
	f.write(t, unchanged+"logging: {verbosity: 4")
	want("half a file", f.look(t, 3), "level=ERROR", "former configuration stays")
	want("the same half", f.look(t, 3))
	f.write(t, "nodePortAddresses: [x]\n")
	want("a bad value", f.look(t, 3), "nodePortAddresses[0]: want primary")
	for range 2 { // Who asks for it is told each time, as nothing else shows that the file was read.
		f.hangups <- os.Interrupt
		want("a signal with a bad value", f.look(t, 0), "nodePortAddresses[0]: want primary")
	}
	testenv.NoError(t, os.Remove(f.path))
	want("no file", f.look(t, 3), "no such file")
	f.write(t, "nodePortAddresses: [x]\n")
	want("the bad value is back", f.look(t, 3), "nodePortAddresses[0]: want primary")
	testenv.NoError(t, os.Remove(f.path))
	want("no file again", f.look(t, 3), "no such file")
	if got := f.level.Level(); got != -3 {
		t.Errorf("level after errors: got %v, want -3", got)
	}
	f.write(t, unchanged+"logging: {verbosity: 3}\noomScoreAdj: 5\n")
	want("an ignored field", f.look(t, 3), "no field has changed")
	f.hangups <- os.Interrupt
	want("a signal", f.look(t, 0), "no field has changed")
	f.write(t, unchanged+"logging: {verbosity: 5}\n")
	f.hangups <- os.Interrupt
	want("a signal after a change", f.look(t, 0), "changed=logging.verbosity")
	if got := f.level.Level(); got != -5 {
		t.Errorf("level: got %v, want -5", got)
	}
}

// TestFollowEnds checks that a change that is not live ends the program, and names the fields, but not
// if a flag has set the field.
func TestFollowEnds(t *testing.T) {
	t.Parallel()
	f := follow(t, unchanged+"hostnameOverride: a\nlogging: {verbosity: 1}\n", "-hostname-override", "b", "-v", "2")
	f.write(t, unchanged+"hostnameOverride: c\nlogging: {verbosity: 3}\n")
	if got := f.look(t, 3); !strings.Contains(got, "no field has changed") {
		t.Errorf("fields that flags set: got log\n%s\nwant no change", got)
	}
	f.write(t, unchanged+"nodePortAddresses: [primary]\niptables: {masqueradeAll: true}\n")
	f.look(t, 3)
	select {
	case err := <-f.ended:
		f.ended <- err
		if !errors.Is(err, errRestart) || !strings.HasSuffix(err.Error(), ": nodePortAddresses, iptables.masqueradeAll") {
			t.Errorf("got error %v, want errRestart with both fields", err)
		}
	case <-time.After(lookPatience):
		t.Error("the follower does not end")
	}
}

// TestFollowReadsOnce changes the file while the follower reads it: the content that it compares with the
// next one must be the one that is in effect.
func TestFollowReadsOnce(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	path := filepath.Join(folder, "config.yaml")
	write := func(verbosity int) error {
		next := filepath.Join(folder, "next")
		text := fmt.Sprintf("%s%slogging: {verbosity: %d}\n", header, unchanged, verbosity)
		return errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, path))
	}
	testenv.NoError(t, write(0))
	args := []string{"-config", path}
	c, err := newConfig("linux").readCommandLine(args, io.Discard)
	testenv.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan error, 1)
	go func() {
		var err error
		for i := 1; ctx.Err() == nil && err == nil; i++ {
			if err = write(i % 2); runtime.GOOS == "windows" && errors.Is(err, fs.ErrPermission) {
				err = nil // Windows does not replace a file while it is open.
			}
		}
		changed <- err
	}()
	f := follower{args: args, config: c, log: slog.New(slog.DiscardHandler), level: new(slog.LevelVar)}
	for range 300 {
		if err := f.look(true); err != nil {
			t.Error(err)
		}
		if f.tried == nil && runtime.GOOS == "windows" {
			continue // Windows lets nobody read a file that is being replaced.
		}
		if got, want := string(f.config.text), string(f.tried); got != want {
			t.Errorf("in effect is\n%s\nwhich was not compared; want\n%s", got, want)
			break
		}
	}
	cancel()
	if err := <-changed; err != nil {
		t.Error(err)
	}
}
