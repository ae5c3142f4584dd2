package filestore

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vipkit/vipkit/allocator"
)

// writeNew writes a file that holds these changes beside the one at path, and waits
// until it is on the disk. An error leaves nothing behind.
func writeNew(path string, changes []allocator.Event, full int) error {
	name := newName(path)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// What somebody else may have put there, such as a link, is not followed.
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = writeSnapshot(file, changes, full)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

func newName(path string) string { return path + ".new" }

// snapshotFile is what a snapshot is written to: its head comes last, since it says
// how long the rest is.
type snapshotFile interface {
	io.Writer
	io.WriterAt
}

func writeSnapshot(file snapshotFile, changes []allocator.Event, full int) error {
	h := newHead()
	w := bufio.NewWriter(file)
	length, err := w.Write(h.bytes())
	if err != nil {
		return err
	}
	h.snapshot = int64(length)
	var frame []byte
	for piece := range pieces(changes, full, false) {
		frame = h.appendFrame(frame[:0], piece)
		if _, err := w.Write(frame); err != nil {
			return err
		}
		h.snapshot += int64(len(frame))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = file.WriteAt(h.bytes(), 0)
	return err
}

// takePlace puts the file of writeNew in the place of the one at path, in one step,
// and waits until that is on the disk.
func takePlace(path string) error {
	if err := os.Rename(newName(path), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}
