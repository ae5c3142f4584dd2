package agent

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

func (c *config) checkFormat() error {
	if f := c.Logging.Format; f != textFormat && f != jsonFormat && f != "" {
		return fmt.Errorf("%.40q: must be %s or %s", f, textFormat, jsonFormat)
	}
	return nil
}

// logLevel returns the lowest level that is logged: logr.V(n) becomes -n in slog.
func (c *config) logLevel() slog.Level { return slog.Level(-int(c.Logging.Verbosity)) }

// logHandler returns the handler of the log.
func (c *config) logHandler(out io.Writer, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: showVerbosity}
	if c.Logging.Format == jsonFormat {
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
