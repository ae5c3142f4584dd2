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
		root := node.Content[0]
		if root.Tag == "!!null" {
			continue
		}
		if prepare(root, make(map[*yaml.Node]int)) > maxExpanded {
			c.errs.add(text.line-1+root.Line, noItem, fmt.Errorf("with aliases expanded, larger than %d bytes", maxExpanded))
			continue
		}
		c.addNode(ctx, part{item: noItem, node: root, before: text.line - 1}, otherKind)
	}
}

// addNode adds an object in YAML, or a List. The items of a List are taken out of it, and each is converted when
// the one before is read: the nodes of a large List take much memory, and its JSON would take as much again.
func (c *content) addNode(ctx context.Context, p part, listed kind) {
	p.line = p.before + p.node.Line
	if _, items := child(p.node, "items"); items != nil && items.Kind == yaml.SequenceNode {
		p.items, items.Content = items.Content, nil
	}
	var value any
	err := p.node.Decode(&value)
	if err == nil {
		p.data, err = json.Marshal(value)
	}
	if err != nil {
		line, reason := syntaxError(err)
		c.errs.add(max(p.line, p.before+line), p.item, reason)
		return
	}
	c.add(ctx, p, listed)
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
		if value == nil {
			break
		}
		line, at = mark.Line, value
	}
	return p.before + line
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
