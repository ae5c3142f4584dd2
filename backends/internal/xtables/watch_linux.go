package xtables

import "context"

// watcher notices changes that other programs make to the tables of a family: an [nfnetlink.Monitor] or a
// [legacyWatch].
type watcher interface {
	// Begin is called before everything is read: later changes count.
	Begin() error
	// Pause runs a program that makes a number of commits, which run returns. They do not count. It
	// returns the error of run.
	Pause(ctx context.Context, run func() (commits int, err error)) error
	// Noticed reports whether there may have been changes since Begin.
	Noticed() bool
	// Wait returns nil when there has been one. It may run beside all other methods.
	Wait(ctx context.Context) error
}
