package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
)

const (
	// maxYAML bounds a YAML document. The parser needs 20 times as much memory for manifests, and up to
	// 170 times as much for other texts.
	maxYAML = 8 << 20
	// maxExpanded bounds a document with its aliases expanded.
	maxExpanded = 2 * maxYAML
)

// part is a document or an item of a List: a node of YAML, or raw JSON.
type part struct {
	line int // of the file where it begins
	item int // position in its List, or noItem
	raw  json.RawMessage
	node *yaml.Node
	// before is the number of lines in the file before the text whose lines the node counts.
	before int
}

// readYAML reads YAML, of which a line with ... may end a document.
func (c *content) readYAML(text document) {
	p := part{line: text.line, item: noItem, before: text.line - 1}
	if size := len(text.text); size > maxYAML {
		c.fail(p, fmt.Errorf("too large for a YAML document: %d bytes, limit %d; separate objects by lines with ---, or write JSON", size, maxYAML))
		return
	}
	for d := yaml.NewDecoder(bytes.NewReader(text.text)); ; {
		var node yaml.Node
		if err := d.Decode(&node); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			line, reason := syntaxError(err)
			last := text.from(len(bytes.TrimRight(text.text, " \r\n")))
			p.line = min(p.before+line, last.line)
			c.fail(p, reason)
			return
		}
		p.node = node.Content[0]
		p.line = p.before + p.node.Line
		switch {
		case p.node.Tag == "!!null":
		case prepare(p.node, make(map[*yaml.Node]int)) > maxExpanded:
			c.fail(p, fmt.Errorf("with aliases expanded, larger than %d bytes", maxExpanded))
		default:
			c.add(p, otherKind)
		}
	}
}

var errNoObject = errors.New("not an object")

// open returns the type of an object, and the items of a List.
func (p part) open() (apiVersion, kind string, items []part, err error) {
	if p.node == nil {
		var list struct {
			APIVersion string            `json:"apiVersion"`
			Kind       string            `json:"kind"`
			Items      []json.RawMessage `json:"items"`
		}
		if p.raw[0] != '{' {
			return "", "", nil, errNoObject
		}
		err = kjson.UnmarshalCaseSensitivePreserveInts(p.raw, &list)
		for i, raw := range list.Items {
			items = append(items, part{line: p.line, item: i, raw: raw})
		}
		return list.APIVersion, list.Kind, items, err
	}
	if _, list := child(p.node, "items"); list.Kind == yaml.SequenceNode {
		for i, n := range list.Content {
			items = append(items, part{line: p.before + n.Line, item: i, node: n, before: p.before})
		}
	}
	if n := p.node; n.Kind != yaml.MappingNode && (n.Kind != yaml.AliasNode || n.Alias.Kind != yaml.MappingNode) {
		return "", "", nil, errNoObject
	}
	_, apiVersionNode := child(p.node, "apiVersion")
	_, kindNode := child(p.node, "kind")
	return apiVersionNode.Value, kindNode.Value, items, nil
}

// json returns the part as JSON.
func (p part) json() ([]byte, error) {
	if p.node == nil {
		return p.raw, nil
	}
	var value any
	if err := p.node.Decode(&value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// prepare makes texts of keys and times, as JSON has them, and returns the size of a node with its aliases
// expanded, or maxExpanded+1 if it is larger. sizes has the nodes that aliases name.
func prepare(n *yaml.Node, sizes map[*yaml.Node]int) int {
	const perValue, perAlias = 2, 64 // the shortest text of one, and more, as manifests have few aliases
	if n.Kind == yaml.AliasNode {
		return perAlias + sizes[n.Alias] // Without a size, it contains itself: Decode refuses it.
	}
	size := perValue + len(n.Value)
	for i, c := range n.Content {
		isKey := n.Kind == yaml.MappingNode && i%2 == 0 && c.Tag != "!!merge"
		if c.Kind == yaml.ScalarNode && (isKey || c.Tag == "!!timestamp") {
			c.Tag = "!!str"
		}
		size = min(size+prepare(c, sizes), maxExpanded+1)
	}
	if n.Anchor != "" {
		sizes[n] = size
	}
	return size
}

// syntaxError returns the line from the first message of the parser, counted from 1, and the rest.
func syntaxError(err error) (line int, reason error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if all, ok := errors.AsType[*yaml.TypeError](err); ok {
		text = all.Errors[0]
	}
	if _, err := fmt.Sscanf(text, "line %d: ", &line); err != nil {
		return 1, errors.New(text)
	}
	_, text, _ = strings.Cut(text, ": ")
	if strings.HasPrefix(text, "did not find expected ") {
		line++ // The parser's grammar counts lines from 0.
	}
	text, _, _ = strings.Cut(text, " at line ") // of the other one of two keys, and not counted in the file
	return line, errors.New(text)
}

// lineOf returns the line of a field, or of the nearest part around it that exists. The path is that of a decoder:
// "spec.ports[0].nodePort".
func (p part) lineOf(path string) int {
	if p.node == nil {
		return p.line
	}
	line, at := p.node.Line, p.node
	for step := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '.' || c == '[' || c == ']' }) {
		mark, value := child(at, step)
		if mark == nil {
			break
		}
		line, at = mark.Line, value
	}
	return p.before + line
}

// child returns the value of a key of a mapping and the key, or the entry of a sequence at an index,
// twice. If there is none, mark is nil and value is the zero Node.
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
	return nil, &yaml.Node{}
}

// fieldOf returns the path of the field of a decoder's error, or the empty one.
func fieldOf(err error) string {
	if strict, ok := errors.AsType[kjson.FieldError](err); ok {
		return strict.FieldPath()
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wrong.Field
	}
	return ""
}
