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

	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
)

// maxObjects bounds the documents of a file, and its objects.
const maxObjects = 1 << 20

var (
	errTooMany  = fmt.Errorf("more than %d objects", maxObjects)
	errEncoding = errors.New("not in UTF-8: save the file in this encoding")
)

// content is the content of a file.
type content struct {
	objects        []object
	errs, warnings []*DocumentError
	ignored        map[string]int
}

// readContent reads the documents of a file. The only error is the context's.
func readContent(ctx context.Context, path string, text []byte) (content, error) {
	c := content{ignored: make(map[string]int)}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if !utf8.Valid(text) {
		c.fail(part{item: noItem}, errEncoding)
		text = nil
	}
	count := 0
	for doc := range documents(text) {
		c.read(doc)
		if err := ctx.Err(); err != nil {
			return content{}, err
		}
		if count++; max(count, len(c.objects)) > maxObjects {
			c.fail(part{line: doc.line, item: noItem}, errTooMany)
			break
		}
	}
	c.errs, c.warnings = firstErrors(c.errs), firstErrors(c.warnings)
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
func (c *content) read(doc document) {
	if utilyaml.IsJSONBuffer(doc.text) {
		doc = c.readJSON(doc)
	}
	c.readYAML(doc)
}

// readJSON reads the JSON values that a document begins with, and returns the rest.
func (c *content) readJSON(rest document) document {
	d := kjson.NewDecoderCaseSensitivePreserveInts(bytes.NewReader(rest.text))
	for {
		var value json.RawMessage
		before := d.InputOffset()
		if err := d.Decode(&value); err != nil {
			if len(rest.text) > maxYAML && !errors.Is(err, io.EOF) {
				c.fail(part{line: rest.line, item: noItem}, err)
				return document{}
			}
			return rest
		}
		rest = rest.from(int(d.InputOffset()-before) - len(value))
		c.add(part{line: rest.line, item: noItem, raw: value}, otherKind)
		rest = rest.from(len(value))
	}
}

// fail records that a part cannot be read.
func (c *content) fail(p part, err error) {
	c.errs = append(c.errs, &DocumentError{Line: p.line, Item: p.item, Err: err})
}

// add adds an object or the items of a List, or counts what is of another kind. What a List of one kind
// has is of that kind unless it names another.
func (c *content) add(p part, listed kind) {
	apiVersion, typ, items, err := p.open()
	k, isList := listed, false
	if err == nil && (listed == otherKind || apiVersion != "" || typ != "") {
		k, isList, err = classify(apiVersion, typ)
	}
	switch {
	case err != nil:
		c.fail(p, err)
	case isList && p.item != noItem:
		c.fail(p, errors.New("a List in a List"))
	case isList && len(c.objects)+len(items) > maxObjects:
		c.fail(p, errTooMany)
	case isList:
		for _, item := range items {
			c.add(item, k)
		}
	case k == otherKind:
		c.ignored[apiVersion+" "+typ]++
	default:
		c.addObject(p, k)
	}
}

// addObject adds an object of a known kind.
func (c *content) addObject(p part, k kind) {
	data, err := p.json()
	if err != nil {
		line, reason := syntaxError(err)
		p.line = max(p.line, p.before+line)
		c.fail(p, reason)
		return
	}
	o := object{value: k.empty(), line: p.line, item: p.item}
	unknown, err := kjson.UnmarshalStrict(data, o.value)
	o.value = withDefaults(o.value)
	o.key = key{k, types.NamespacedName{Namespace: o.value.GetNamespace(), Name: o.value.GetName()}}
	switch {
	case err != nil:
		p.line = p.lineOf(fieldOf(err))
		c.fail(p, fmt.Errorf("%v: %w", o.key, err))
		return
	case o.Name == "":
		c.fail(p, fmt.Errorf("%v without metadata.name", k))
		return
	}
	c.objects = append(c.objects, o)
	for _, err := range unknown {
		warning := o.problem(err)
		warning.Line = p.lineOf(fieldOf(err))
		c.warnings = append(c.warnings, warning)
	}
}
