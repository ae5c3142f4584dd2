package manifest

import (
	"fmt"
	"strings"
)

// DocumentError is a file, or something in a file, that cannot be read. The
// rest of the file, and all other files, are.
type DocumentError struct {
	// File is the path of the file: the folder as it stands in Source.Path,
	// and the name.
	File string
	// Line is the line of File, counted from 1, where the error is; where that
	// is not known, the one where the item or document begins. It is 0 if the
	// file as a whole is meant.
	Line int
	// Item is the position in the List, counted from 0; -1 outside of lists.
	Item int
	// Err says what is wrong.
	Err error
}

// Error gives file, line, item and reason in one line.
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

// Unwrap gives the reason.
func (e *DocumentError) Unwrap() error { return e.Err }

// lineError is an error at a line of a text, counted from 1.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }

func (e *lineError) Unwrap() error { return e.err }
