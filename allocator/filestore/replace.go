package filestore

import (
	"bufio"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/vipkit/vipkit/allocator"
)

// writeNew writes a file with these changes beside the one at path, and waits until it
// is on the disk. After an error it removes the file.
func writeNew(path string, changes []allocator.Event, full int) error {
	name := newName(path)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A link that another user may have put there is not followed.
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

// writeSnapshot writes the header last, since it has the length of the rest.
func writeSnapshot(file *os.File, changes []allocator.Event, full int) error {
	h := head{salt: rand.Uint32()}
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

// renameNew renames the file of writeNew to path, and waits until the new name is on the disk.
func renameNew(path string) error {
	if err := os.Rename(newName(path), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}
