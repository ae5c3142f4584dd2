package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
)

// maxObjects bounds the documents, the items of a List and the objects of a file.
const maxObjects = 1 << 20

var (
	errTooMany  = fmt.Errorf("more than %d objects", maxObjects)
	errEncoding = errors.New("not in UTF-8: save the file in this encoding")
)

// content is the content of a file.
type content struct {
	objects        []object
	errs, warnings problems
	ignored        map[string]int
}

// readContent reads the documents of a file. The only error is the context's.
func readContent(ctx context.Context, path string, text []byte) (content, error) {
	c := content{ignored: make(map[string]int)}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !utf8.Valid(text) {
		c.errs.add(0, noItem, errEncoding)
		text = nil
	}
	count := 0
	for doc := range documents(text) {
		c.read(ctx, doc)
		if err := ctx.Err(); err != nil {
			return content{}, err
		}
		if count++; max(count, len(c.objects)) > maxObjects {
			c.errs.add(doc.line, noItem, errTooMany)
			break
		}
	}
	for _, e := range slices.Concat(c.errs, c.warnings) {
		e.File = path
	}
	return c, nil
}

// document is a text between two lines with ---, or the rest of one.
type document struct {
	line int // of the file where text begins, counted from 1
	text []byte
}

// from returns the document from an offset on.
func (d document) from(offset int) document {
	return document{line: d.line + bytes.Count(d.text[:offset], []byte("\n")), text: d.text[offset:]}
}

// documents splits a text at lines that begin with ---, as kubectl does.
func documents(text []byte) iter.Seq[document] {
	return func(yield func(document) bool) {
		rest := document{line: 1, text: bytes.TrimPrefix(text, []byte("---"))}
		for {
			doc, _, more := bytes.Cut(rest.text, []byte("\n---"))
			if !yield(document{line: rest.line, text: doc}) || !more {
				return
			}
			rest = rest.from(len(doc) + len("\n---"))
		}
	}
}

// read reads a document. Text that looks like JSON may be YAML in flow style.
func (c *content) read(ctx context.Context, doc document) {
	if utilyaml.IsJSONBuffer(doc.text) {
		doc = c.readJSON(ctx, doc)
	}
	c.readYAML(ctx, doc)
}

// readJSON reads the JSON values that a document begins with, and returns the rest.
func (c *content) readJSON(ctx context.Context, doc document) (rest document) {
	d := kjson.NewDecoderCaseSensitivePreserveInts(bytes.NewReader(doc.text))
	rest = doc
	for {
		var value json.RawMessage
		before := d.InputOffset()
		if err := d.Decode(&value); err != nil {
			if len(rest.text) > maxYAML && !errors.Is(err, io.EOF) {
				c.errs.add(rest.line, noItem, err)
				return document{}
			}
			return rest
		}
		rest = rest.from(int(d.InputOffset()-before) - len(value))
		c.add(ctx, part{line: rest.line, item: noItem, data: value}, otherKind)
		rest = rest.from(len(value))
	}
}

// part is an object, or a List of them, as JSON.
type part struct {
	line int // of the file where it begins
	item int // position in its List, or noItem
	data []byte
	// node is the part if it is in YAML, and before the lines of the file before those that its nodes count.
	node   *yaml.Node
	before int
	// items are the items of a List in YAML, whose data has none.
	items []*yaml.Node
}

// add adds an object or the items of a List, or counts what is of another kind. What a List of one kind
// has is of that kind unless it names another.
func (c *content) add(ctx context.Context, p part, listed kind) {
	var frame struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}
	k, isList, err := listed, false, kjson.UnmarshalCaseSensitivePreserveInts(p.data, &frame)
	if err == nil && (listed == otherKind || frame.APIVersion != "" || frame.Kind != "") {
		k, isList, err = classify(frame.APIVersion, frame.Kind)
	}
	switch {
	case ctx.Err() != nil:
	case p.data[0] != '{':
		c.errs.add(p.line, p.item, errors.New("not an object"))
	case err != nil:
		c.errs.add(p.line, p.item, inWords(err))
	case isList && p.item != noItem:
		c.errs.add(p.line, p.item, errors.New("a List in a List"))
	case isList && len(c.objects)+len(frame.Items)+len(p.items) > maxObjects:
		c.errs.add(p.line, p.item, errTooMany)
	case isList:
		c.addItems(ctx, p, frame.Items, k)
	case k == otherKind:
		c.ignored[frame.APIVersion+" "+frame.Kind]++
	default:
		c.addObject(p, k)
	}
}

// addItems adds the items of a List: the raw items of a part in JSON, the nodes of a part in YAML.
func (c *content) addItems(ctx context.Context, list part, items []json.RawMessage, k kind) {
	for i, data := range items {
		c.add(ctx, part{line: list.line, item: i, data: data}, k)
	}
	for i, n := range list.items {
		list.items[i] = nil // It is not needed any more.
		c.addNode(ctx, part{item: i, node: n, before: list.before}, k)
	}
}

// addObject adds an object of a known kind.
func (c *content) addObject(p part, k kind) {
	o := object{value: k.empty(), line: p.line, item: p.item}
	unknown, err := kjson.UnmarshalStrict(p.data, o.value)
	o.value = withDefaults(o.value)
	o.key = key{k, types.NamespacedName{Namespace: o.value.GetNamespace(), Name: o.value.GetName()}}
	switch {
	case err != nil:
		c.errs.add(p.lineOf(fieldOf(err)), p.item, fmt.Errorf("%v: %w", o.key, inWords(err)))
		return
	case o.Name == "":
		c.errs.add(p.line, p.item, fmt.Errorf("%v without metadata.name", k))
		return
	}
	c.objects = append(c.objects, o)
	for _, err := range unknown {
		c.warnings.add(p.lineOf(fieldOf(err)), p.item, fmt.Errorf("%v: %w", o.key, err))
	}
	if len(unknown) > 0 {
		return // What the object seems to lack may have the name that is unknown.
	}
	if field, err := lacking(o.value); err != nil {
		c.warnings.add(p.lineOf(field), p.item, fmt.Errorf("%v: %w", o.key, err))
	}
}
