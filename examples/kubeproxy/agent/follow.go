package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
)

// errRestart ends the program, without failure: fields have changed that count from the start only.
var errRestart = errors.New("the configuration file has changed")

// lookEvery is how often the program looks whether the file has changed.
const lookEvery = 5 * time.Second

// follower follows the configuration file. Fields with the trait isLive are applied. Other changes end
// the program: its next start adopts the rules, so that no connection is lost.
type follower struct {
	args   []string
	config *config // in effect
	log    *slog.Logger
	level  *slog.LevelVar
	// tried is the last content that was read, seen the one at the last look, failure the last
	// error of reading.
	tried, seen []byte
	failure     string
}

// serveAndFollow serves, and follows the configuration file. It returns errRestart if the program must
// be started again.
func serveAndFollow(ctx context.Context, f *follower) error {
	log := logr.FromSlogHandler(f.log.Handler())
	c := f.config
	if c.configFile == "" {
		return serve(ctx, c, log)
	}
	c.followed = new(atomic.Pointer[config])
	c.followed.Store(c)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	ended := make(chan error, 1)
	go func() {
		ended <- f.run(ctx, hangups, looks.C)
		cancel()
	}()
	err := serve(ctx, c, log)
	cancel()
	if changed := <-ended; err == nil {
		err = changed
	}
	return err
}

// run looks at the file at each tick, and reads it again at each signal, until ctx ends or the program
// must be started again.
func (f *follower) run(ctx context.Context, hangups <-chan os.Signal, looks <-chan time.Time) error {
	f.tried = f.config.text
	for {
		isForced := false
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			isForced = true
		case <-looks:
		}
		if err := f.look(isForced); err != nil {
			return err
		}
	}
}

// look reads the file if it has changed. Unless that is forced, the content must be the same at two
// looks, as a program may be writing it.
func (f *follower) look(isForced bool) error {
	if isForced {
		f.failure = "" // Who asks is told.
	}
	text, err := readRegular(f.config.configFile)
	if err != nil {
		f.tried = nil // It counts as changed when it can be read again.
		f.failed(err)
		return nil
	}
	isComplete := isForced || bytes.Equal(text, f.seen)
	f.seen = text
	if bytes.Equal(text, f.tried) && !isForced || !isComplete {
		return nil
	}
	next := newConfig(f.config.system)
	next.text = text // A second reading could have other content.
	_, err = next.readCommandLine(f.args, io.Discard)
	f.tried = text
	if err != nil {
		f.failed(err)
		return nil
	}
	f.failure = ""
	return f.apply(next)
}

// readRegular returns the content of a configuration file, unless it is a pipe or the like: to read it
// could block until the program is killed.
func readRegular(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return readText(path)
}

// failed logs an error once.
func (f *follower) failed(err error) {
	if text := err.Error(); text != f.failure {
		f.failure = text
		f.log.Error("configuration file not applied; the former configuration stays in effect", "err", text)
	}
}

// apply applies a configuration.
func (f *follower) apply(next *config) error {
	live, others := changes(f.config, next)
	switch {
	case len(others) > 0:
		return fmt.Errorf("%w: %s", errRestart, strings.Join(others, ", "))
	case len(live) == 0:
		f.log.Info("configuration file read again; no field has changed")
		return nil
	}
	f.level.Set(next.logLevel())
	if !reflect.DeepEqual(next.Conntrack, f.config.Conntrack) && !next.onWindows() {
		if err := conntrackParameters(&next.Conntrack).Set(); err != nil {
			f.log.Warn("some conntrack parameters not set; run -init-only with more privileges", "reason", err.Error())
		}
	}
	next.followed = f.config.followed
	if f.config = next; next.followed != nil {
		next.followed.Store(next)
	}
	next.report(f.log)
	f.log.Info("configuration file applied", "changed", strings.Join(live, ", "))
	return nil
}

// changes returns the fields in which two configurations differ: fields that are applied at once, and the others.
func changes(was, is *config) (live, others []string) {
	before := was.settings()
	for i, s := range is.settings() {
		switch {
		case s.field == "" || s.traits.has(isIgnored) || reflect.DeepEqual(s.value(), before[i].value()):
		case s.traits.has(isLive):
			live = append(live, s.field)
		default:
			others = append(others, s.field)
		}
	}
	return live, others
}
