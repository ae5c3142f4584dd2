package problemlog

import (
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
)

// Most is how many lines of one Log are written in a minute, so that users who create objects
// cannot fill the log.
const Most = 100

// Log has the problems that last. The zero Log has none.
type Log[E interface {
	comparable
	error
}] struct {
	last   []E
	open   map[string]E // by their text
	minute time.Time    // start of the current minute
	lines  int          // in that minute
}

// Update logs each problem that is new, and each that has ended since the last call. Message says
// what they are; describe returns the reason of one, and its place as keys and values.
func (l *Log[E]) Update(to logr.Logger, message string, problems []E, describe func(E) (reason error, place []any)) {
	if slices.Equal(problems, l.last) {
		return // the usual case
	}
	l.last = problems
	now := make(map[string]E, len(problems))
	for _, p := range problems {
		now[p.Error()] = p // The ports of one Service may have the same problem.
	}
	if time.Since(l.minute) >= time.Minute {
		l.minute, l.lines = time.Now(), 0
	}
	for _, text := range slices.Sorted(maps.Keys(l.open)) {
		if _, lasts := now[text]; !lasts && l.admits(to, message) {
			reason, place := describe(l.open[text])
			to.Info(message+" resolved", append(place, "was", reason.Error())...)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(now)) {
		if _, known := l.open[text]; !known && l.admits(to, message) {
			reason, place := describe(now[text])
			to.Error(reason, message, place...)
		}
	}
	l.open = now
}

// admits reports whether one more line may be logged.
func (l *Log[E]) admits(to logr.Logger, message string) bool {
	if l.lines++; l.lines == Most+1 {
		to.Info(message + ": too many to log in a minute")
	}
	return l.lines <= Most
}
