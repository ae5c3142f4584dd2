//go:build !windows

package neterr

func known() []number { return byName() }
