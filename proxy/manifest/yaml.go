package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v2"
)

const (
	// maxYAML bounds the text that is parsed at once. The parser needs up to 150
	// times as much memory, and the API server takes no object half as large.
	maxYAML = 4 << 20
	// maxExpanded bounds the text with aliases expanded. The parser counts only
	// values: it accepts a few hundred thousand aliases of one long text.
	maxExpanded = 4 * maxYAML
)

// parseYAML reads a text of the given size, which is smaller than its length if empty
// lines keep the line numbers right. It returns nil for a text without content. Errors are
// DocumentErrors if the line is known.
func parseYAML(doc document, size int) (any, error) {
	if size > maxYAML {
		return nil, fmt.Errorf("too large for a YAML document or list item: %d bytes, limit %d", size, maxYAML)
	}
	d := yaml.NewDecoder(bytes.NewReader(doc.text))
	// The parser cannot distinguish a duplicate key from one that overrides a merged one.
	d.SetStrict(!bytes.Contains(doc.text, []byte("<<")))
	var v any
	if err := d.Decode(&v); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntaxError(doc, err)
	}
	var more any
	if err := d.Decode(&more); err == nil {
		return nil, errors.New("a second document without --- on a line of its own")
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(doc, err)
	}
	left := maxExpanded
	return jsonable(v, &left)
}

// jsonable converts values of the YAML parser to values that JSON can express. It
// subtracts their size from left.
func jsonable(v any, left *int) (any, error) {
	const perValue = 8
	if *left -= perValue; *left < 0 {
		return nil, fmt.Errorf("aliases expand to more than %d bytes", maxExpanded)
	}
	switch v := v.(type) {
	case nil, bool, int, int64, uint64:
		return v, nil
	case string:
		*left -= len(v)
		return v, nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("the number %v is not allowed in an API object", v)
		}
		return v, nil
	case []any:
		for i, e := range v {
			var err error
			if v[i], err = jsonable(e, left); err != nil {
				return nil, err
			}
		}
		return v, nil
	case map[any]any:
		return jsonableMap(v, left)
	}
	return nil, fmt.Errorf("a YAML value of type %T is not allowed in an API object", v)
}

func jsonableMap(v map[any]any, left *int) (any, error) {
	m := make(map[string]any, len(v))
	for k, e := range v {
		key, err := jsonableKey(k)
		if err != nil {
			return nil, err
		}
		if _, twice := m[key]; twice {
			return nil, fmt.Errorf("key %q already set in map", key)
		}
		*left -= len(key)
		if m[key], err = jsonable(e, left); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func jsonableKey(k any) (string, error) {
	switch k := k.(type) {
	case string:
		return k, nil
	case bool, int, int64:
		return fmt.Sprint(k), nil
	case float64:
		// In single precision, as in kubectl.
		if !math.IsNaN(k) && !math.IsInf(k, 0) {
			return strconv.FormatFloat(k, 'g', -1, 32), nil
		}
	}
	return "", fmt.Errorf("the YAML key %v is not allowed in an API object", k)
}

// syntaxError extracts the line from the parser's message.
func syntaxError(doc document, err error) error {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	var many *yaml.TypeError
	if errors.As(err, &many) && len(many.Errors) > 0 {
		message = many.Errors[0]
	}
	rest, ok := strings.CutPrefix(message, "line ")
	number, reason, _ := strings.Cut(rest, ": ")
	line, err := strconv.Atoi(number)
	if !ok || err != nil {
		return errors.New(message)
	}
	// The parser reports what is missing at the end on the line after it.
	last := doc.lineOf(len(bytes.TrimRight(doc.text, "\r\n")))
	line = min(doc.line+line-1+lineOffset(reason), last)
	return &DocumentError{Line: line, Item: noItem, Err: errors.New(reason)}
}

// lineOffset corrects the parser's line: messages of its grammar, unlike those of its
// scanner, count lines from 0.
func lineOffset(reason string) int {
	grammar := []string{
		"did not find expected key",
		"did not find expected '-' indicator",
		"did not find expected ',' or ']'",
		"did not find expected ',' or '}'",
		"did not find expected node content",
		"did not find expected <document start>",
		"found duplicate %YAML directive",
		"found incompatible YAML document",
		"found undefined tag handle",
		"found duplicate %TAG directive",
	}
	if slices.Contains(grammar, reason) {
		return 1
	}
	return 0
}

// wholeYAML returns the objects of a document, at the document's line.
func wholeYAML(doc document) ([]raw, error) {
	v, err := parseYAML(doc, len(doc.text))
	if err != nil || v == nil {
		return nil, err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	objects, _, err := jsonObjects(document{line: doc.line, text: data})
	for i := range objects {
		objects[i].source = doc
	}
	return objects, err
}
