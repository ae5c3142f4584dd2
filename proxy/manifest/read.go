package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxObjects bounds the documents, the items of a List and the objects of a file.
	maxObjects = 1 << 20
	// maxErrors bounds what is reported of one file.
	maxErrors = 100
)

var errTooMany = fmt.Errorf("more than %d objects", maxObjects)

// faults are what is wrong: the first maxErrors of them, and a count.
type faults struct {
	errs []*DocumentError
	more int // that are not in errs
}

func (f *faults) add(path string, line, item int, err error) {
	if len(f.errs) == maxErrors {
		f.more++
		return
	}
	f.errs = append(f.errs, &DocumentError{File: path, Line: line, Item: item, Err: err})
}

// content is what was read in a file.
type content struct {
	objects []object
	faults
	ignored map[string]int
}

// bad says whether something could not be read.
func (c *content) bad() bool { return len(c.errs) > 0 }

// reader collects the content of a file.
type reader struct {
	path string
	content
}

// readContent reads the documents of a file. The only error is the context's.
func readContent(ctx context.Context, path string, data []byte) (content, error) {
	r := reader{path: path}
	count := 0
	for doc := range documents(utf8Text(data)) {
		if err := r.document(ctx, doc); err != nil {
			return content{}, err
		}
		if count++; max(count, len(r.objects)) > maxObjects {
			r.fail(doc.line, noItem, errTooMany)
			break
		}
	}
	if r.more > 0 {
		err := fmt.Errorf("%d errors more", r.more)
		r.errs = append(r.errs, &DocumentError{File: path, Item: noItem, Err: err})
	}
	return r.content, nil
}

// document reads a document in the format that it looks like.
func (r *reader) document(ctx context.Context, doc document) error {
	read := wholeYAML
	if looksLikeJSON(doc.text) {
		read = jsonOrFlow
	} else if l, ok := splitItems(doc); ok {
		return r.listing(ctx, l)
	}
	values, err := read(doc)
	if err != nil {
		r.failAs(doc.line, noItem, err)
	}
	return r.values(ctx, values)
}

// jsonOrFlow reads what looks like JSON and can still be YAML's flow style.
func jsonOrFlow(doc document) ([]raw, error) {
	values, err := jsonDocument(doc)
	if err == nil || errors.Is(err, errTooMany) {
		return values, err
	}
	if whole, err := wholeYAML(doc); err == nil {
		return whole, nil
	}
	return values, err
}

// looksLikeJSON says whether a text begins as an object of JSON.
func looksLikeJSON(text []byte) bool {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(text, " \t"), []byte("{"))
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return ok && len(rest) > 0 && (rest[0] == '"' || rest[0] == '}')
}

// listing reads a document item by item and, where that does not work,
// as a whole. If that does not work either, the good items count.
func (r *reader) listing(ctx context.Context, l listing) error {
	values, bad, err := l.values(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch {
	case err == nil && len(bad.errs) == 0:
		return r.values(ctx, values)
	case errors.Is(err, errTooMany):
		r.fail(l.line, noItem, err)
		return nil
	}
	whole, wholeErr := wholeYAML(l.document)
	if wholeErr == nil {
		return r.values(ctx, whole)
	}
	if errors.Is(err, errUnsplit) {
		err = wholeErr
	}
	if err != nil {
		r.failAs(l.line, noItem, err)
	}
	for _, e := range bad.errs {
		r.failAs(e.Line, e.Item, e.Err)
	}
	r.more += bad.more
	return r.values(ctx, values)
}

func (r *reader) values(ctx context.Context, values []raw) error {
	for _, v := range values {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.value(v); err != nil {
			r.fail(v.line, v.item, err)
		}
	}
	return nil
}

func (r *reader) value(v raw) error {
	t, err := typeOf(v.data)
	if err != nil {
		return err
	}
	if t == (metav1.TypeMeta{}) {
		t = v.typ
	}
	k, err := classify(t)
	switch {
	case err != nil:
		return err
	case k == listKind:
		return errors.New("a List in a List")
	case k == otherKind:
		if r.ignored == nil {
			r.ignored = make(map[string]int)
		}
		r.ignored[t.APIVersion+" "+t.Kind]++
		return nil
	}
	o, err := newObject(k, v)
	if err != nil {
		return err
	}
	r.objects = append(r.objects, o)
	return nil
}

// fail notes an error at a line of the file.
func (r *reader) fail(line, item int, err error) {
	r.add(r.path, line, item, err)
}

// failAs notes an error in a text that begins at a line of the file, at the line
// that the error tells.
func (r *reader) failAs(line, item int, err error) {
	var relative *lineError
	var absolute *DocumentError
	switch {
	case errors.As(err, &relative):
		r.fail(line+relative.line-1, item, relative.err)
	case errors.As(err, &absolute):
		r.fail(absolute.Line, item, absolute.Err)
	default:
		r.fail(line, item, err)
	}
}
