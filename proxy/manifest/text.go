package manifest

import (
	"bytes"
	"encoding/binary"
	"iter"
	"unicode/utf16"
	"unicode/utf8"
)

// utf8Text gives the text without its byte order mark, and in UTF-8 if the
// mark says UTF-16, which is what some shells write when output is redirected.
func utf8Text(data []byte) []byte {
	if text, ok := bytes.CutPrefix(data, []byte("\xef\xbb\xbf")); ok {
		return text
	}
	if text, ok := bytes.CutPrefix(data, []byte("\xff\xfe")); ok {
		return fromUTF16(text, binary.LittleEndian)
	}
	if text, ok := bytes.CutPrefix(data, []byte("\xfe\xff")); ok {
		return fromUTF16(text, binary.BigEndian)
	}
	return data
}

func fromUTF16(data []byte, order binary.ByteOrder) []byte {
	text := make([]byte, 0, len(data)/2)
	for len(data) >= 2 {
		r := rune(order.Uint16(data))
		data = data[2:]
		if utf16.IsSurrogate(r) && len(data) >= 2 {
			if pair := utf16.DecodeRune(r, rune(order.Uint16(data))); pair != utf8.RuneError {
				r, data = pair, data[2:]
			}
		}
		text = utf8.AppendRune(text, r)
	}
	if len(data) > 0 {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	return text
}

// lines walks over the lines of a text.
type lines struct {
	data       []byte
	start, end int // of the line with its end, in data
	number     int // of the line, counted from 1
}

func (l *lines) next() bool {
	l.start = l.end
	if l.start == len(l.data) {
		return false
	}
	l.number++
	if n := bytes.IndexByte(l.data[l.start:], '\n'); n >= 0 {
		l.end = l.start + n + 1
	} else {
		l.end = len(l.data)
	}
	return true
}

// text is the line without its end.
func (l *lines) text() []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(l.data[l.start:l.end], []byte("\n")), []byte("\r"))
}

// blank says that a line or its rest has nothing, or nothing but a comment.
func blank(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r")
	return len(text) == 0 || text[0] == '#'
}

// marker says whether a line begins with --- or ..., which at this place are
// document marks inside of any YAML construct, and gives the rest of the line.
func marker(text []byte, mark string) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(text, []byte(mark))
	if !ok || len(rest) > 0 && rest[0] != ' ' && rest[0] != '\t' {
		return nil, false
	}
	return rest, true
}

// document is a part of a file.
type document struct {
	line int // of the file where text begins, counted from 1
	text []byte
}

// documents splits a file at its document marks. Documents without content are
// left out, and a document begins with its first line of content or directives.
func documents(data []byte) iter.Seq[document] {
	return func(yield func(document) bool) {
		s := splitter{lines: lines{data: data}, begin: noDocument, yield: yield}
		more := true
		for more && s.next() {
			more = s.take(s.text())
		}
		if more {
			s.start = len(data)
			s.cut()
		}
	}
}

// splitter goes through the lines of a file and gives away its documents.
type splitter struct {
	lines
	begin      int  // offset of the open document, or noDocument
	line       int  // of the open document
	directives bool // the open document has nothing else so far
	yield      func(document) bool
}

const noDocument = -1

// take takes a line. Like cut, it says whether the documents are still wanted.
func (s *splitter) take(text []byte) bool {
	if rest, ok := marker(text, "---"); ok {
		return s.mark(rest)
	}
	if _, ok := marker(text, "..."); ok {
		return s.cut()
	}
	if blank(text) {
		return true
	}
	s.open()
	s.directives = s.directives && text[0] == '%'
	return true
}

// mark takes a line with --- and a rest.
func (s *splitter) mark(rest []byte) bool {
	if s.begin != noDocument && s.directives {
		s.directives = false
		return true
	}
	if !s.cut() {
		return false
	}
	if !blank(rest) {
		s.open()
		s.directives = false
	}
	return true
}

// open begins a document at the line unless one is open.
func (s *splitter) open() {
	if s.begin == noDocument {
		s.begin, s.line, s.directives = s.start, s.number, true
	}
}

// cut ends the document that is open, if any, before the line.
func (s *splitter) cut() bool {
	if s.begin == noDocument {
		return true
	}
	doc := document{line: s.line, text: s.data[s.begin:s.start]}
	s.begin = noDocument
	return s.yield(doc)
}
