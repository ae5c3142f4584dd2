package manifest

import (
	"bytes"
)

// listing is a YAML document in block style that has a list under the key items
// of its top level. Read item by item, a large List costs the parser no memory
// to speak of, one bad item spoils no other, and every error has its line.
//
// The split goes by indentation alone and is wrong when an item's quoted or flow
// text runs on at the indentation of the items. Then the item in which such text
// begins ends within it and does not parse, so a listing whose parts all parse
// is right. Whoever meets a part that does not must try the document as a whole.
type listing struct {
	document
	frame []byte // the document with empty lines in place of the items
	size  int    // the frame's without those lines
	items []document
}

// splitItems finds the items. There are none in a document of another style.
func splitItems(doc document) (listing, bool) {
	l := lines{data: doc.text}
	if doc.text[0] == '%' || !l.find("items:") {
		return listing{}, false
	}
	head := l.end
	list := listing{document: doc}
	indent, tail, count := -1, len(doc.text), 0
	for l.next() {
		text := l.text()
		if blank(text) {
			count++
			continue
		}
		depth := len(text) - len(bytes.TrimLeft(text, " "))
		dash := isDash(text[depth:])
		switch {
		case indent < 0 && !dash, len(list.items) > maxObjects:
			return listing{}, false
		case dash && (indent < 0 || depth == indent):
			indent = depth
			list.close(l.start)
			list.items = append(list.items, document{line: doc.line + l.number - 1, text: doc.text[l.start:]})
		case depth == 0:
			tail = l.start
		}
		if tail < len(doc.text) {
			break
		}
		count++
	}
	if len(list.items) == 0 {
		return listing{}, false
	}
	list.close(tail)
	list.size = head + len(doc.text) - tail
	list.frame = make([]byte, 0, list.size+count)
	list.frame = append(list.frame, doc.text[:head]...)
	list.frame = append(list.frame, bytes.Repeat([]byte("\n"), count)...)
	list.frame = append(list.frame, doc.text[tail:]...)
	return list, true
}

// close ends the item that is open at the offset end of the document.
func (l *listing) close(end int) {
	if n := len(l.items); n > 0 {
		last := &l.items[n-1]
		begin := len(l.text) - len(last.text)
		last.text = l.text[begin:end]
	}
}

// find goes to the line that has nothing but the key.
func (l *lines) find(key string) bool {
	for l.next() {
		if rest, ok := bytes.CutPrefix(l.text(), []byte(key)); ok && blank(rest) {
			return true
		}
	}
	return false
}

// isDash says whether the text begins an item of a block sequence.
func isDash(text []byte) bool {
	return text[0] == '-' && (len(text) == 1 || text[1] == ' ' || text[1] == '\t')
}
