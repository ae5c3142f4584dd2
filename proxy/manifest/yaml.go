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
	// maxYAML bounds what the parser gets at once. It needs up to 150 times as
	// much memory, and the API server takes no object that is half as large.
	maxYAML = 4 << 20
	// maxExpanded bounds what aliases make out of it. The parser counts only
	// values: a few hundred thousand aliases of one long text pass there.
	maxExpanded = 4 * maxYAML
)

// parseYAML reads the only document of a text of the given size, which is
// smaller than len(text) if it has empty lines to get the line numbers right. A
// text without content is nil. Errors are lineErrors where the line is known.
func parseYAML(text []byte, size int) (any, error) {
	if size > maxYAML {
		return nil, fmt.Errorf("too large for a YAML document or list item: %d bytes, limit %d", size, maxYAML)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	// Whether a key that stands twice overrides a merged one, the parser cannot tell.
	d.SetStrict(!bytes.Contains(text, []byte("<<")))
	var v any
	if err := d.Decode(&v); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, syntaxError(text, err)
	}
	var more any
	if err := d.Decode(&more); err == nil {
		return nil, errors.New("a second document without --- on a line of its own")
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(text, err)
	}
	left := maxExpanded
	return jsonable(v, &left)
}

// jsonable turns what the YAML parser gives into what JSON can express. It takes
// the size of the values from left.
func jsonable(v any, left *int) (any, error) {
	const perValue = 8
	if *left -= perValue; *left < 0 {
		return nil, fmt.Errorf("aliases make more than %d bytes of it", maxExpanded)
	}
	switch v := v.(type) {
	case nil, bool, int, int64, uint64:
		return v, nil
	case string:
		*left -= len(v)
		return v, nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("the number %v has no place in an API object", v)
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
	return nil, fmt.Errorf("a YAML value of type %T has no place in an API object", v)
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
		// In single precision, as kubectl has it.
		if !math.IsNaN(k) && !math.IsInf(k, 0) {
			return strconv.FormatFloat(k, 'g', -1, 32), nil
		}
	}
	return "", fmt.Errorf("the YAML key %v has no place in an API object", k)
}

// syntaxError takes the line in the text out of the parser's message.
func syntaxError(text []byte, err error) error {
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
	// What is missing at the end, the parser misses on the line after.
	last := 1 + bytes.Count(bytes.TrimRight(text, "\r\n"), []byte("\n"))
	return &lineError{line: min(line+lineOffset(reason), last), err: errors.New(reason)}
}

// lineOffset corrects the parser's line: what its grammar says, unlike what its
// scanner says, is counted from 0.
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

// wholeYAML gives a document as JSON values at the document's line.
func wholeYAML(doc document) ([]raw, error) {
	v, err := parseYAML(doc.text, len(doc.text))
	if err != nil || v == nil {
		return nil, err
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsonValues(data, func(int) int { return doc.line })
}
