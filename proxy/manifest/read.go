package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxObjects bounds the documents, the items of a List and the objects of a file.
	maxObjects = 1 << 20
	// maxErrors bounds the errors that are reported of one file.
	maxErrors = 100
)

var errTooMany = fmt.Errorf("more than %d objects", maxObjects)

// content is the content of a file.
type content struct {
	objects []object
	errs    []*DocumentError // the first maxErrors, and one that counts the others
	more    int              // errors that are not in errs
	ignored map[string]int
	// warnings has maxErrors at most; a further one says that there are more.
	warnings []*DocumentError
	// former has the objects that the file had before, while it is read.
	former map[digest]object
}

// bad reports whether something could not be read.
func (c *content) bad() bool { return len(c.errs) > 0 }

// readContent reads the documents of a file that had some objects before. The only error is the
// context's.
func readContent(ctx context.Context, path string, data []byte, before []object) (content, error) {
	c := content{ignored: make(map[string]int), former: make(map[digest]object, len(before))}
	for _, o := range before {
		c.former[o.digest] = o
	}
	delete(c.former, digest{})
	text, err := utf8Text(data)
	if err != nil {
		c.fail(0, noItem, err)
	}
	count := 0
	for doc := range documents(text) {
		if err := c.read(ctx, doc); err != nil {
			return content{}, err
		}
		if count++; max(count, len(c.objects)) > maxObjects {
			c.fail(doc.line, noItem, errTooMany)
			break
		}
	}
	if c.more > 0 {
		err := fmt.Errorf("%d more errors", c.more)
		c.errs = append(c.errs, &DocumentError{Item: noItem, Err: err})
	}
	for _, e := range slices.Concat(c.errs, c.warnings) {
		e.File = path
	}
	c.former = nil
	return c, nil
}

// read reads a document.
func (c *content) read(ctx context.Context, doc document) error {
	values, err := parse(ctx, doc)
	if err != nil {
		c.fail(doc.line, noItem, err)
	}
	for _, v := range values {
		if ctx.Err() != nil {
			break
		}
		if err := c.add(v); err != nil {
			c.fail(v.line, v.item, err)
		}
	}
	return ctx.Err()
}

// parse parses a document as JSON if it looks like JSON, item by item if it is a listing,
// and otherwise as a whole, as YAML. If one of the first two fails, it parses the document as
// a whole; if that fails too, it returns the good values.
func parse(ctx context.Context, doc document) (values []raw, err error) {
	if looksLikeJSON(doc.text) {
		values, err = jsonValues(doc)
	} else if l, ok := splitItems(doc); ok {
		values, err = l.values(ctx)
	} else {
		return wholeYAML(doc)
	}
	good := err == nil && !slices.ContainsFunc(values, func(v raw) bool { return v.err != nil })
	if good || errors.Is(err, errTooMany) || ctx.Err() != nil {
		return values, err
	}
	whole, wholeErr := wholeYAML(doc)
	if wholeErr == nil || errors.Is(err, errUnsplit) {
		return whole, wholeErr
	}
	return values, err
}

// looksLikeJSON reports whether a text begins like a JSON object.
func looksLikeJSON(text []byte) bool {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(text, " \t"), []byte("{"))
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return ok && len(rest) > 0 && (rest[0] == '"' || rest[0] == '}')
}

// add adds an object, or counts it if it is of another kind.
func (c *content) add(v raw) error {
	if v.err != nil {
		return v.err
	}
	t, err := typeOf(v.data)
	if err != nil {
		return err
	}
	if t == (metav1.TypeMeta{}) {
		t = v.typ
	}
	k, isList, err := classify(t)
	switch {
	case err != nil:
		return err
	case isList:
		return errors.New("a List in a List")
	case k == otherKind:
		c.ignored[t.APIVersion+" "+t.Kind]++
		return nil
	}
	sum := digestOf(k, v)
	if o, same := c.former[sum]; same { // Not two copies of all objects when a file with many changes.
		o.line, o.item, o.kept = v.line, v.item, false
		c.objects = append(c.objects, o)
		return nil
	}
	o, warnings, err := newObject(k, v)
	if err != nil {
		return err
	}
	if len(warnings) == 0 {
		o.digest = sum
	}
	for _, w := range warnings {
		c.warn(w)
	}
	c.objects = append(c.objects, o)
	return nil
}

// warn records a warning.
func (c *content) warn(w *DocumentError) {
	switch n := len(c.warnings); {
	case n < maxErrors:
		c.warnings = append(c.warnings, w)
	case n == maxErrors:
		w.Err = errors.New("more warnings, which are not listed")
		c.warnings = append(c.warnings, w)
	}
}

// fail records an error at its own line of the file, if it has one, or at the given line.
func (c *content) fail(line, item int, err error) {
	if len(c.errs) == maxErrors {
		c.more++
		return
	}
	if at, ok := errors.AsType[*DocumentError](err); ok {
		line, err = at.Line, at.Err
	}
	c.errs = append(c.errs, &DocumentError{Line: line, Item: item, Err: err})
}
