package main

import (
	"fmt"
	"io"
	"log/slog"
)

// The forms of the log, by kube-proxy's names.
const (
	textFormat = "text"
	jsonFormat = "json"
)

type logging struct {
	Verbosity int
	Format    string
}

func (l *logging) check() error {
	if l.Format != textFormat && l.Format != jsonFormat && l.Format != "" {
		return fmt.Errorf("%.40q: must be %s or %s", l.Format, textFormat, jsonFormat)
	}
	return nil
}

// level returns the lowest level that is logged: logr.V(n) becomes -n in slog.
func (l *logging) level() slog.Level { return slog.Level(-l.Verbosity) }

// handler returns the handler of the log.
func (l *logging) handler(out io.Writer, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: showVerbosity}
	if l.Format == jsonFormat {
		return slog.NewJSONHandler(out, o)
	}
	return slog.NewTextHandler(out, o)
}

// showVerbosity turns a level that slog names DEBUG or DEBUG+2 into the level INFO and the number
// that -v must have to show it, under the key that kube-proxy's log in JSON has.
func showVerbosity(groups []string, a slog.Attr) slog.Attr {
	level, ok := a.Value.Any().(slog.Level)
	if len(groups) > 0 || a.Key != slog.LevelKey || !ok || level >= 0 {
		return a
	}
	return slog.Attr{Value: slog.GroupValue(slog.String(slog.LevelKey, slog.LevelInfo.String()), slog.Int("v", int(-level)))}
}

// report logs what the configuration has that has no effect, or another one than in kube-proxy.
func (c *config) report(log *slog.Logger) {
	for _, text := range c.warnings {
		log.Warn("configuration", "warning", text)
	}
	for _, text := range c.notes {
		log.Info("configuration", "note", text)
	}
}
