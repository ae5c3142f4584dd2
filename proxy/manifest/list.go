package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxBatch bounds the text of several items that the parser gets together: to
// start it costs as much as some hundred bytes do.
const maxBatch = 16 << 10

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
	frame []byte     // the document with empty lines in place of the items
	size  int        // the frame's without those lines
	items []document // one more than maxObjects of them stand for any larger number
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
		case indent < 0 && !dash:
			return listing{}, false
		case dash && (indent < 0 || depth == indent):
			indent = depth
			list.open(l.start, l.number)
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

// open begins an item at an offset and a line of the document.
func (l *listing) open(start, number int) {
	if len(l.items) > maxObjects {
		return
	}
	l.close(start)
	l.items = append(l.items, document{line: l.line + number - 1, text: l.text[start:]})
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

// errUnsplit says that the items of a document cannot be told apart by lines.
var errUnsplit = errors.New("the items do not stand apart")

// top reads the frame: the document without its items, and the type of items
// that do not say it themselves if it is a List.
func (l *listing) top() (top raw, item metav1.TypeMeta, isList bool, err error) {
	v, err := parseYAML(l.frame, l.size)
	if err != nil {
		return raw{}, item, false, err
	}
	frame, ok := v.(map[string]any)
	if items, there := frame["items"]; !ok || !there || items != nil {
		return raw{}, item, false, errUnsplit
	}
	top = raw{line: l.line, item: noItem}
	if top.data, err = json.Marshal(frame); err != nil {
		return raw{}, item, false, err
	}
	typ, err := typeOf(top.data)
	if err != nil {
		return raw{}, item, false, err
	}
	item, isList = itemType(typ)
	return top, item, isList, nil
}

// values gives the items as JSON values, and errors, without File, for those
// that do not parse. The error is the frame's, the context's, errTooMany or errUnsplit.
func (l *listing) values(ctx context.Context) (values []raw, bad faults, err error) {
	top, item, isList, err := l.top()
	switch {
	case err != nil:
		return nil, faults{}, err
	case !isList:
		return []raw{top}, faults{}, nil
	case len(l.items) > maxObjects:
		return nil, faults{}, errTooMany
	}
	for begin := 0; begin < len(l.items); {
		if err := ctx.Err(); err != nil {
			return nil, faults{}, err
		}
		batch := l.batch(begin)
		parsed := parseBatch(batch)
		for i, doc := range batch {
			var data []byte
			if parsed != nil {
				data, err = json.Marshal(parsed[i])
			} else {
				data, err = itemJSON(doc)
			}
			if err != nil {
				bad.add("", doc.line, begin+i, err)
				continue
			}
			values = append(values, raw{line: doc.line, item: begin + i, data: data, typ: item})
		}
		begin += len(batch)
	}
	return values, bad, nil
}

// batch gives the items from one on that go to the parser together.
func (l *listing) batch(begin int) []document {
	end, size := begin+1, len(l.items[begin].text)
	for end < len(l.items) && size+len(l.items[end].text) <= maxBatch {
		size += len(l.items[end].text)
		end++
	}
	return l.items[begin:end]
}

// parseBatch parses items together. It gives nil unless each of them is one of
// the list: where text runs on into the next item there are fewer.
func parseBatch(items []document) []any {
	if len(items) == 1 {
		return nil
	}
	var text []byte
	for _, item := range items {
		text = append(text, item.text...)
	}
	// With a merge key in one item the parser would be less strict with all.
	if bytes.Contains(text, []byte("<<")) {
		return nil
	}
	v, err := parseYAML(text, len(text))
	parsed, ok := v.([]any)
	if err != nil || !ok || len(parsed) != len(items) {
		return nil
	}
	return parsed
}

func itemJSON(doc document) ([]byte, error) {
	v, err := parseYAML(doc.text, len(doc.text))
	if err != nil {
		return nil, err
	}
	if items, ok := v.([]any); ok && len(items) == 1 {
		return json.Marshal(items[0])
	}
	return nil, errors.New("not an item of the list")
}
