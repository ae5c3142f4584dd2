package manifest

import (
	"bytes"
	"iter"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// utf8Text returns the text without its byte order mark, and in UTF-8 if the mark is that
// of UTF-16, which some shells write when output is redirected.
func utf8Text(data []byte) ([]byte, error) {
	if len(data) == 0 || data[0] < 0xef {
		return data, nil // without a mark, and without a copy
	}
	text, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), data)
	return text, err
}

// blank reports whether a line, or its rest, is empty or a comment.
func blank(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	return len(text) == 0 || text[0] == '#'
}

// cutMark returns the rest of a line that begins with a mark, such as --- or the - of an item.
func cutMark(line []byte, mark string) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(mark))
	return rest, ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// document is a part of a file.
type document struct {
	line int // of the file where text begins, counted from 1
	text []byte
}

// lineOf returns the line of the file at an offset of the text.
func (d document) lineOf(offset int) int {
	return d.line + bytes.Count(d.text[:offset], []byte("\n"))
}

// errorAt adds the line of an offset of the text to an error.
func (d document) errorAt(offset int, err error) error {
	return &DocumentError{Line: d.lineOf(offset), Item: noItem, Err: err}
}

// until returns the text before its rest.
func (d document) until(rest document) document {
	return document{line: d.line, text: d.text[:len(d.text)-len(rest.text)]}
}

// lines returns each line, and the text from there on.
func (d document) lines() iter.Seq2[document, []byte] {
	return func(yield func(document, []byte) bool) {
		rest := d
		for line := range bytes.Lines(d.text) {
			if !yield(rest, line) {
				return
			}
			rest = document{line: rest.line + 1, text: rest.text[len(line):]}
		}
	}
}

// documents splits a file at lines with --- or ..., which are document marks inside of any
// YAML construct. Documents without content are left out, and a document begins with its
// first line of content or directives.
func documents(data []byte) iter.Seq[document] {
	return func(yield func(document) bool) { split(document{line: 1, text: data}, yield) }
}

func split(file document, yield func(document) bool) {
	var open document   // up to the end of the file; without line if there is none
	directives := false // open has only directives so far
	for rest, line := range file.lines() {
		content, mark := cutMark(line, "---")
		_, last := cutMark(line, "...")
		switch {
		case mark && directives:
			directives = false
			continue
		case !mark && !last:
			content = line
		case open.line > 0 && !yield(open.until(rest)):
			return
		default:
			open, directives = document{}, false
		}
		if last || blank(content) {
			continue
		}
		if open.line == 0 {
			open, directives = rest, !mark
		}
		directives = directives && line[0] == '%'
	}
	if open.line > 0 {
		yield(open)
	}
}
