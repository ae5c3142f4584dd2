package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const noItem = -1

// raw is one object as JSON.
type raw struct {
	line int // of the file where it begins
	item int // position in its List, or noItem
	data []byte
	typ  metav1.TypeMeta // what the List says for items that do not say it
}

// jsonDocument gives the JSON values of a document, with their lines.
func jsonDocument(doc document) ([]raw, error) {
	at := lineCounter{document: doc, line: doc.line}
	return jsonValues(doc.text, at.lineOf)
}

// lineCounter tells lines of a document from offsets, fast if they come in order.
type lineCounter struct {
	document
	offset, line int
}

func (c *lineCounter) lineOf(offset int) int {
	offset = min(offset, len(c.text))
	if offset < c.offset {
		c.offset, c.line = 0, c.document.line
	}
	c.line += bytes.Count(c.text[c.offset:offset], []byte("\n"))
	c.offset = offset
	return c.line
}

// jsonValues gives the objects of a text with any number of JSON values, and
// those of Lists one by one. With an error come the values before it. The
// error is a DocumentError without File.
func jsonValues(text []byte, lineOf func(offset int) int) ([]raw, error) {
	w := walker{Decoder: json.NewDecoder(bytes.NewReader(text)), text: text, lineOf: lineOf}
	for {
		begin := len(text) - len(bytes.TrimLeft(text[w.InputOffset():], " \t\r\n"))
		err := w.value(begin)
		if errors.Is(err, io.EOF) {
			return w.values, nil
		}
		if err != nil {
			offset := 0
			if !errors.Is(err, errTooMany) {
				offset, err = jsonSyntax(text[begin:], err)
			}
			return w.values, &DocumentError{Line: lineOf(begin + offset), Item: noItem, Err: err}
		}
	}
}

// jsonSyntax reads the first value of a text once more for the place of a syntax
// error, which a decoder that gave tokens does not know. Another error stays
// what it is, at the beginning.
func jsonSyntax(text []byte, err error) (int, error) {
	var value json.RawMessage
	again := json.NewDecoder(bytes.NewReader(text)).Decode(&value)
	var syntax *json.SyntaxError
	switch {
	case errors.As(again, &syntax):
		return int(syntax.Offset) - 1, again
	case errors.Is(again, io.ErrUnexpectedEOF):
		return len(bytes.TrimRight(text, " \t\r\n")), errors.New("JSON ends too early")
	}
	return 0, err
}

// walker goes through JSON values and cuts out the objects.
type walker struct {
	*json.Decoder
	text   []byte
	lineOf func(offset int) int
	values []raw
}

// value takes the object that begins at the offset. io.EOF says that there is none.
func (w *walker) value(begin int) error {
	token, err := w.Token()
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return errors.New("not an object")
	}
	top := raw{line: w.lineOf(begin), item: noItem}
	items, err := w.fields(&top.typ)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	item, isList := itemType(top.typ)
	if !isList {
		top.data, top.typ = w.text[begin:w.InputOffset()], metav1.TypeMeta{}
		w.values = append(w.values, top)
		return nil
	}
	for i := range items {
		items[i].typ = item
	}
	w.values = append(w.values, items...)
	return nil
}

// fields goes to the end of an object and gives its items and type.
func (w *walker) fields(typ *metav1.TypeMeta) (items []raw, err error) {
	var other json.RawMessage
	for w.More() {
		key, err := w.Token()
		if err != nil {
			return nil, err
		}
		switch {
		case key == "apiVersion":
			err = w.Decode(&typ.APIVersion)
		case key == "kind":
			err = w.Decode(&typ.Kind)
		case key == "items" && w.atArray():
			items, err = w.items()
		default:
			err = w.Decode(&other)
		}
		if err != nil {
			return nil, fmt.Errorf("%v: %w", key, err)
		}
	}
	_, err = w.Token()
	return items, err
}

// atArray says whether the value that comes next, after a colon, is an array.
func (w *walker) atArray() bool {
	rest := bytes.TrimLeft(w.text[w.InputOffset():], ": \t\r\n")
	return len(rest) > 0 && rest[0] == '['
}

func (w *walker) items() ([]raw, error) {
	if _, err := w.Token(); err != nil {
		return nil, err
	}
	var items []raw
	var value json.RawMessage
	for w.More() {
		if len(items) == maxObjects {
			return nil, errTooMany
		}
		if err := w.Decode(&value); err != nil {
			return nil, err
		}
		end := int(w.InputOffset())
		begin := end - len(value)
		items = append(items, raw{line: w.lineOf(begin), item: len(items), data: w.text[begin:end]})
	}
	_, err := w.Token()
	return items, err
}
