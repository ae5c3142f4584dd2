package iptables

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testenv"
)

// A long text finds a wide pipe, and all of it comes through.
func TestInput(t *testing.T) {
	for _, c := range []struct{ length, want int }{{0, narrow}, {narrow, narrow}, {narrow + 1, wide}, {3 * wide, wide}} {
		text := []byte(strings.Repeat("x", c.length))
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan error, 1)
		go func() {
			_, err := newInput(text).WriteTo(w)
			written <- errors.Join(err, w.Close())
		}()
		got, err := io.ReadAll(r)
		if err := errors.Join(err, <-written); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, text) {
			t.Errorf("of %d bytes, there came %d, or others", len(text), len(got))
		}
		if size, err := unix.FcntlInt(r.Fd(), unix.F_GETPIPE_SZ, 0); err != nil || size != c.want {
			t.Errorf("for %d bytes, the pipe holds %d and there is error %v, want %d", c.length, size, err, c.want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	var whole bytes.Buffer
	if n, err := newInput(make([]byte, wide)).WriteTo(&whole); n != wide || err != nil || whole.Len() != wide {
		t.Errorf("where there is no pipe: got %d bytes, %v, want %d", n, err, wide)
	}
}

func TestTail(t *testing.T) {
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
			t.Fatalf("after %d bytes, %d are kept, want the last %d", len(all), len(got.kept), len(want))
		}
	}
}
