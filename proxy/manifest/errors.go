package manifest

import (
	"fmt"
	"strings"
)

// noItem is the position of what is in no List.
const noItem = -1

// DocumentError is the error of a file, or of a part of it, that cannot be read, or a warning
// about it. The rest of the file, and all other files, are read.
type DocumentError struct {
	// File is the path of the file: the folder as in Watcher.Path, and the name.
	File string
	// Line is the line of the error in File, counted from 1; if that is unknown,
	// the line where the item or document begins. It is 0 for an error of the whole
	// file.
	Line int
	// Item is the position in the List, counted from 0; -1 outside of lists.
	Item int
	// Err is the reason.
	Err error
}

// Error returns file, line, item and reason in one line.
func (e *DocumentError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Item >= 0 {
		fmt.Fprintf(&b, ": items[%d]", e.Item)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the reason.
func (e *DocumentError) Unwrap() error { return e.Err }

// maxErrors bounds the errors, and the warnings, that are reported of one file.
const maxErrors = 100

// firstErrors returns the first maxErrors errors of a file, and one that counts the others.
func firstErrors(all []*DocumentError) []*DocumentError {
	more := len(all) - maxErrors
	if more <= 0 {
		return all
	}
	return append(all[:maxErrors:maxErrors], &DocumentError{Item: noItem, Err: fmt.Errorf("%d more, which are not listed", more)})
}
