package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const noItem = -1

// raw is one object as JSON.
type raw struct {
	line int // of the file where it begins
	item int // position in its List, or noItem
	data []byte
	// source is the text that has the object; its line is that of the file.
	source document
	typ    metav1.TypeMeta // the type that the List gives to items without one
	err    error           // why there is no data
}

// jsonValues returns the objects of a document with any number of JSON values, and
// those of Lists one by one. With an error come the values before it.
func jsonValues(doc document) (values []raw, err error) {
	for {
		text := bytes.TrimLeft(doc.text, " \t\r\n")
		if len(text) == 0 {
			return values, nil
		}
		doc = document{line: doc.lineOf(len(doc.text) - len(text)), text: text}
		objects, size, err := jsonObjects(doc)
		if len(values)+len(objects) > maxObjects {
			err = errTooMany
		}
		if err != nil {
			return values, jsonError(doc, err)
		}
		values = append(values, objects...)
		doc = document{line: doc.lineOf(size), text: text[size:]}
	}
}

// jsonError adds its line to an error of the first JSON value of a document. A decoder of tokens
// does not report the offset of a syntax error, so jsonError decodes the value again.
func jsonError(doc document, err error) error {
	if errors.Is(err, errTooMany) {
		return doc.errorAt(0, err)
	}
	var value json.RawMessage
	var syntax *json.SyntaxError
	again := json.NewDecoder(bytes.NewReader(doc.text)).Decode(&value)
	switch {
	case errors.As(again, &syntax):
		return doc.errorAt(int(syntax.Offset)-1, again)
	case errors.Is(again, io.ErrUnexpectedEOF):
		return doc.errorAt(len(bytes.TrimRight(doc.text, " \t\r\n")), errors.New("JSON ends too early"))
	}
	return doc.errorAt(0, err)
}

// jsonObjects returns the object that a document begins with in JSON, or those of a List one by
// one, and the size of that text.
func jsonObjects(doc document) (objects []raw, size int, err error) {
	d := json.NewDecoder(bytes.NewReader(doc.text))
	frame, items, err := listItems(d, doc)
	if err == nil {
		objects, err = withItems(frame, items)
	}
	return objects, int(d.InputOffset()), err
}

// withItems returns the items if the document without them is a List, and the document otherwise.
func withItems(doc document, items []raw) ([]raw, error) {
	typ, err := typeOf(doc.text)
	if err != nil {
		return nil, err
	}
	k, isList, _ := classify(typ) // content.add returns the error.
	if !isList {
		return []raw{{line: doc.line, item: noItem, data: doc.text, source: doc}}, nil
	}
	if k != otherKind {
		for i := range items {
			items[i].typ = metav1.TypeMeta{APIVersion: typ.APIVersion, Kind: k.String()}
		}
	}
	return items, nil
}

// listItems reads a JSON object. It returns the elements of its array items, if it has one, and
// the object without them, which is quick to decode. It keeps no copy of the whole.
func listItems(d *json.Decoder, doc document) (frame document, items []raw, err error) {
	if begin, err := d.Token(); err != nil {
		return doc, nil, err
	} else if begin != json.Delim('{') {
		return doc, nil, errNoObject
	}
	var other json.RawMessage
	var array, after int // offsets of items
	for err == nil && d.More() {
		key, keyErr := d.Token()
		rest := bytes.TrimLeft(doc.text[d.InputOffset():], ": \t\r\n")
		switch {
		case keyErr != nil:
			return doc, nil, keyErr
		case key == "items" && bytes.HasPrefix(rest, []byte("[")):
			items, err = elements(d, doc)
			array, after = len(doc.text)-len(rest), int(d.InputOffset())
		default:
			err = d.Decode(&other)
		}
	}
	if err == nil {
		_, err = d.Token()
	}
	frame = document{line: doc.line, text: doc.text[:d.InputOffset()]}
	if array > 0 {
		frame.text = slices.Concat(frame.text[:array], []byte("null"), frame.text[after:])
	}
	return frame, items, err
}

// elements reads the next value, an array.
func elements(d *json.Decoder, doc document) (items []raw, err error) {
	_, err = d.Token()
	var value json.RawMessage
	for offset := 0; err == nil && d.More(); {
		if len(items) == maxObjects {
			return nil, errTooMany
		}
		err = d.Decode(&value)
		end := int(d.InputOffset())
		begin := end - len(value)
		doc.line += bytes.Count(doc.text[offset:begin], []byte("\n"))
		offset = begin
		text := doc.text[begin:end]
		items = append(items, raw{line: doc.line, item: len(items), data: text, source: document{line: doc.line, text: text}})
	}
	if err == nil {
		_, err = d.Token()
	}
	return items, err
}
