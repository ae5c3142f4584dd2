package manifest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

const (
	// maxYAML bounds a YAML document. The parser needs 20 times as much memory for manifests, and up to
	// 170 times as much for other texts.
	maxYAML = 8 << 20
	// maxExpanded bounds a document with its aliases expanded.
	maxExpanded = 2 * maxYAML
	// maxDepth bounds the nesting with aliases expanded: an anchor may contain its own alias.
	maxDepth = 1000
)

// readYAML reads YAML, of which a line with ... may end a document.
func (c *content) readYAML(ctx context.Context, text document) {
	if size := len(text.text); size > maxYAML {
		c.errs.add(text.line, noItem, fmt.Errorf("too large for a YAML document: %d bytes, limit %d; separate objects by lines with ---, or write JSON", size, maxYAML))
		return
	}
	for d := yaml.NewDecoder(bytes.NewReader(text.text)); ; {
		var node yaml.Node
		if err := d.Decode(&node); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			line, reason := syntaxError(err)
			last := text.from(len(bytes.TrimRight(text.text, " \r\n")))
			c.errs.add(min(text.line-1+line, last.line), noItem, reason)
			return
		}
		doc := yamlDocument{root: node.Content[0], before: text.line - 1}
		if doc.root.Tag == "!!null" {
			continue
		}
		convert := &converter{left: maxExpanded}
		items := doc.takeItems()
		data, err := convert.json(doc.root)
		if err != nil {
			c.errs.add(doc.before+convert.line, noItem, err)
			continue
		}
		c.add(ctx, part{line: doc.before + doc.root.Line, item: noItem, data: data, yaml: doc, items: items, convert: convert}, otherKind)
	}
}

// syntaxError returns the line from the parser's message, counted from 1, and the rest.
func syntaxError(err error) (line int, reason error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if _, err := fmt.Sscanf(text, "line %d: ", &line); err != nil {
		return 1, errors.New(text)
	}
	_, text, _ = strings.Cut(text, ": ")
	if strings.HasPrefix(text, "did not find expected ") {
		line++ // The parser's grammar counts lines from 0.
	}
	return line, errors.New(text)
}

// yamlDocument is a document of a file, or an item of its List.
type yamlDocument struct {
	root   *yaml.Node
	before int // lines of the file before those that the nodes count
}

// lineOf returns the line of a field of the document, or of the nearest part around it that exists.
func (d yamlDocument) lineOf(path string) int {
	if d.root == nil {
		return 0
	}
	line, at := d.root.Line, d.root
	for step := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '.' || c == '[' || c == ']' }) {
		mark, value := child(at, step)
		if value == nil {
			break
		}
		line, at = mark.Line, value
	}
	return d.before + line
}

// takeItems takes the items of a List out of the document. Each is converted when the one before is read: the
// nodes of a large List take much memory, and its JSON would take as much again.
func (d yamlDocument) takeItems() (items []*yaml.Node) {
	_, value := child(d.root, "items")
	if d.root.Kind != yaml.MappingNode || value == nil || value.Kind != yaml.SequenceNode {
		return nil
	}
	for i, n := range d.root.Content {
		if n == value {
			d.root.Content[i] = &yaml.Node{Kind: yaml.SequenceNode, Tag: value.Tag, Line: value.Line}
		}
	}
	return value.Content
}

// child returns the value of a key of a mapping and the key, or the entry of a sequence at an index,
// twice; nil if there is none.
func child(n *yaml.Node, step string) (mark, value *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if i, err := strconv.Atoi(step); n.Kind == yaml.SequenceNode && err == nil && i >= 0 && i < len(n.Content) {
		return n.Content[i], n.Content[i]
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == step {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}

// converter converts the nodes of a document to JSON.
type converter struct {
	left int // of maxExpanded
	line int // of the node that is converted, or that has an error
}

func (c *converter) json(n *yaml.Node) ([]byte, error) {
	value, err := c.value(n, 0)
	if err != nil {
		return nil, err
	}
	c.line = n.Line
	return json.Marshal(value)
}

func (c *converter) value(n *yaml.Node, depth int) (any, error) {
	const perValue, perAlias = 2, 64 // the shortest text of one, and more, as manifests have few aliases
	c.line = n.Line
	if c.left -= perValue + len(n.Value); c.left < 0 || depth > maxDepth {
		return nil, fmt.Errorf("with aliases expanded, larger than %d bytes or deeper than %d", maxExpanded, maxDepth)
	}
	switch {
	case n.Kind == yaml.AliasNode:
		c.left -= perAlias
		return c.value(n.Alias, depth+1)
	case n.Kind == yaml.SequenceNode:
		return c.sequence(n, depth+1)
	case n.Kind == yaml.MappingNode:
		return c.mapping(n, depth+1)
	case n.Tag == "!!str" || n.Tag == "!!timestamp":
		return n.Value, nil
	}
	var v any
	err := n.Decode(&v)
	return v, err
}

func (c *converter) sequence(n *yaml.Node, depth int) ([]any, error) {
	list := make([]any, 0, len(n.Content))
	for _, e := range n.Content {
		v, err := c.value(e, depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// mapping converts a mapping. Its own keys override what it merges with <<.
func (c *converter) mapping(n *yaml.Node, depth int) (map[string]any, error) {
	m := make(map[string]any, len(n.Content)/2)
	var merged []any
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, err := c.value(n.Content[i], depth)
		if err != nil {
			return nil, err
		}
		v, err := c.value(n.Content[i+1], depth)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprint(key)
		switch _, twice := m[name]; {
		case n.Content[i].Tag == "!!merge":
			merged = append(merged, v)
		case twice:
			c.line = n.Content[i].Line
			return nil, fmt.Errorf("key %q already set in map", name)
		default:
			m[name] = v
		}
	}
	return m, merge(m, merged)
}

// merge adds the keys that a mapping lacks from another one, or from each of a list.
func merge(into map[string]any, from any) error {
	switch from := from.(type) {
	case map[string]any:
		for k, v := range from {
			if _, ok := into[k]; !ok {
				into[k] = v
			}
		}
	case []any:
		for _, each := range from {
			if err := merge(into, each); err != nil {
				return err
			}
		}
	default:
		return errors.New("<< needs a mapping, or a list of mappings")
	}
	return nil
}
