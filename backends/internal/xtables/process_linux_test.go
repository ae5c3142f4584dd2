package xtables

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A long input enlarges the pipe, and all of it is written.
func TestInput(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ length, want int }{{0, defaultPipe}, {defaultPipe, defaultPipe}, {defaultPipe + 1, largePipe}, {3 * largePipe, largePipe}} {
		text := []byte(strings.Repeat("x", c.length))
		r, w, err := os.Pipe()
		testenv.NoError(t, err)
		written := make(chan error, 1)
		go func() {
			_, err := newInput(text).WriteTo(w)
			written <- errors.Join(err, w.Close())
		}()
		got, err := io.ReadAll(r)
		testenv.NoError(t, errors.Join(err, <-written))
		if !bytes.Equal(got, text) {
			t.Errorf("output of the pipe: got %d bytes, want the %d bytes of the input", len(got), len(text))
		}
		if size, err := unix.FcntlInt(r.Fd(), unix.F_GETPIPE_SZ, 0); err != nil || size != c.want {
			t.Errorf("size of the pipe for %d bytes: got %d, error %v, want %d", c.length, size, err, c.want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	var whole bytes.Buffer
	if n, err := newInput(make([]byte, largePipe)).WriteTo(&whole); n != largePipe || err != nil || whole.Len() != largePipe {
		t.Errorf("WriteTo without a pipe: got %d bytes, error %v, want %d", n, err, largePipe)
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	var got tail
	var all []byte
	for range 200 {
		piece := make([]byte, r.IntN(3*tailSize)/(1+r.IntN(50)))
		for i := range piece {
			piece[i] = byte('a' + r.IntN(26))
		}
		if n, err := got.Write(piece); n != len(piece) || err != nil {
			t.Fatalf("Write: got %d, %v, want %d and no error", n, err, len(piece))
		}
		all = append(all, piece...)
		if want := all[max(0, len(all)-tailSize):]; string(got.kept) != string(want) {
			t.Fatalf("kept after %d bytes: got %d bytes, want the last %d", len(all), len(got.kept), len(want))
		}
	}
}
