package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
)

// maxBatch bounds the text of several items that are parsed together: starting the
// parser costs as much as some hundred bytes do.
const maxBatch = 16 << 10

// listing is a YAML document in block style that has a list under the key items
// of its top level. Read item by item, a large List needs little memory of the
// parser, one bad item does not affect the others, and every error has its line.
//
// The document is split by indentation alone. That is wrong if quoted or flow text of an
// item continues at the indentation of the items; then the item where such text begins
// does not parse. So a listing whose items all parse is right; otherwise the caller must
// parse the document as a whole.
type listing struct {
	line  int        // of the document
	frame []byte     // the document with empty lines in place of the items
	size  int        // length of the frame without those lines
	items []document // one more than maxObjects of them stand for any larger number
}

// splitItems finds the items. It reports false for a document of another style.
func splitItems(doc document) (listing, bool) {
	for rest, line := range doc.lines() {
		after, ok := bytes.CutPrefix(line, []byte("items:"))
		if !ok || !blank(after) {
			continue
		}
		list := document{line: rest.line + 1, text: rest.text[len(line):]}
		items, tail := blockItems(list)
		lines := bytes.Count(list.until(tail).text, []byte("\n"))
		frame := slices.Concat(doc.until(list).text, bytes.Repeat([]byte("\n"), lines), tail.text)
		l := listing{line: doc.line, frame: frame, size: len(frame) - lines, items: items}
		return l, len(items) > 0 && doc.text[0] != '%'
	}
	return listing{}, false
}

// blockItems returns the items of a block sequence that begins the document, and what
// follows it.
func blockItems(doc document) (items []document, tail document) {
	indent := -1
	for rest, line := range doc.lines() {
		depth := len(line) - len(bytes.TrimLeft(line, " "))
		_, dash := cutMark(line[depth:], "-")
		if dash && (indent < 0 || depth == indent) {
			indent = depth
			if len(items) <= maxObjects {
				items = append(items, rest)
			}
		} else if (depth == 0 || indent < 0) && !blank(line) {
			tail = rest
			break
		}
	}
	for i := range items {
		next := tail
		if i+1 < len(items) {
			next = items[i+1]
		}
		items[i] = items[i].until(next)
	}
	return items, tail
}

// errUnsplit means that a document cannot be split into items by lines.
var errUnsplit = errors.New("the items cannot be split by lines")

// values returns the items as JSON; those that do not parse have an err. The error is the
// frame's, the context's, errTooMany or errUnsplit.
func (l *listing) values(ctx context.Context) ([]raw, error) {
	v, err := parseYAML(document{line: l.line, text: l.frame}, l.size)
	if err != nil {
		return nil, err
	}
	frame, ok := v.(map[string]any)
	if items, there := frame["items"]; !ok || !there || items != nil {
		return nil, errUnsplit
	}
	data, err := json.Marshal(frame)
	if err != nil {
		return nil, err
	}
	if len(l.items) > maxObjects {
		return nil, errTooMany
	}
	var values []raw
	for begin := 0; begin < len(l.items); {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		end, size := begin+1, len(l.items[begin].text)
		for end < len(l.items) && size+len(l.items[end].text) <= maxBatch {
			size += len(l.items[end].text)
			end++
		}
		values = l.parse(values, begin, end)
		begin = end
	}
	return withItems(document{line: l.line, text: data}, values)
}

// parse appends items to the values. It parses them together, and one by one if that fails
// or a merge key would make the parser less strict with all of them.
func (l *listing) parse(values []raw, begin, end int) []raw {
	items, size := l.items[begin:end], 0
	for _, item := range items {
		size += len(item.text)
	}
	all := document{line: items[0].line, text: items[0].text[:size]} // they follow each other
	v, err := parseYAML(all, size)
	parsed, ok := v.([]any)
	if err == nil && (!ok || len(parsed) != len(items)) {
		err = errors.New("not an item of the list")
	}
	if len(items) > 1 && (err != nil || bytes.Contains(all.text, []byte("<<"))) {
		for i := begin; i < end; i++ {
			values = l.parse(values, i, i+1)
		}
		return values
	}
	for i, item := range items {
		value := raw{line: item.line, item: begin + i, source: item, err: err}
		if err == nil {
			value.data, value.err = json.Marshal(parsed[i])
		}
		values = append(values, value)
	}
	return values
}
