package main

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// mutant is one small fault.
type mutant struct {
	name     string // area/name
	sentence string
	file     string
	old, new string
	// The test that catches it: a package, and a pattern for -run.
	suite   suite
	pattern string
}

// readTable reads the mutants of all areas, in the order of the files' names.
func readTable(root fs.FS) ([]*mutant, error) {
	files, err := fs.Glob(root, folder+"/*.txt")
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no files in %s: run this program in the root of the repository", folder)
	}
	var all []*mutant
	for _, name := range files {
		content, err := fs.ReadFile(root, name)
		if err != nil {
			return nil, err
		}
		area := strings.TrimSuffix(path.Base(name), ".txt")
		some, err := parse(area, string(content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

const begin = "=== "

// parse reads the mutants of one area.
func parse(area, content string) ([]*mutant, error) {
	var all []*mutant
	for i, line := range strings.Split(strings.TrimRight(content, "\n"), "\n") {
		if name, ok := strings.CutPrefix(line, begin); ok {
			all = append(all, &mutant{name: area + "/" + name})
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("line %d: want %q and a name first", i+1, begin)
		}
		if err := all[len(all)-1].add(line); err != nil {
			return nil, fmt.Errorf("line %d: mutant %s: %w", i+1, all[len(all)-1].name, err)
		}
	}
	for _, m := range all {
		// An empty line before the next mutant is none of the file.
		m.old, m.new = strings.TrimRight(m.old, "\n")+"\n", strings.TrimRight(m.new, "\n")+"\n"
		if err := m.check(); err != nil {
			return nil, fmt.Errorf("mutant %s: %w", m.name, err)
		}
	}
	return all, nil
}

// add takes one line of the description of a mutant.
func (m *mutant) add(line string) error {
	field, value, _ := strings.Cut(line, ": ")
	switch {
	case line == "" && m.old+m.new != "":
		m.old, m.new = m.old+"\n", m.new+"\n"
	case line == "":
	case line[0] == '-':
		m.old += line[1:] + "\n"
	case line[0] == '+':
		m.new += line[1:] + "\n"
	case line[0] == ' ':
		m.old, m.new = m.old+line[1:]+"\n", m.new+line[1:]+"\n"
	case field == "file":
		m.file = value
	case field == "test":
		m.suite.folder, m.pattern, _ = strings.Cut(value, " ")
	case line == "lane: ipvs":
		m.suite.ipvs = true
	case m.file+m.suite.folder+m.old+m.new == "":
		m.sentence = strings.TrimSpace(m.sentence + " " + line)
	default:
		return fmt.Errorf("unknown line %q", line)
	}
	return nil
}

func (m *mutant) check() error {
	switch {
	case m.sentence == "":
		return fmt.Errorf("no sentence says what a user would meet")
	case m.file == "" || m.suite.folder == "" || m.pattern == "":
		return fmt.Errorf(`want lines "file: FILE" and "test: ./PACKAGE PATTERN"`)
	case m.old == "\n":
		return fmt.Errorf("no line of the file is named")
	case m.old == m.new:
		return fmt.Errorf("it changes nothing")
	}
	if _, err := regexp.Compile(m.pattern); err != nil {
		return fmt.Errorf("pattern of the test: %w", err)
	}
	return nil
}

// apply returns the content of the file with the fault.
func (m *mutant) apply(root fs.FS) (string, error) {
	content, err := fs.ReadFile(root, m.file)
	if err != nil {
		return "", err
	}
	// Only whole lines match. Two matches may share a newline.
	text, old := "\n"+string(content), "\n"+m.old
	at := strings.Index(text, old)
	switch {
	case at < 0:
		return "", fmt.Errorf("%s has no such text:\n%s", m.file, m.old)
	case strings.Contains(text[at+1:], old):
		return "", fmt.Errorf("%s has this text more than once:\n%s", m.file, m.old)
	}
	return (text[:at] + "\n" + m.new + text[at+len(old):])[1:], nil
}
