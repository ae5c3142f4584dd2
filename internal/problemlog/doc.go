// Package problemlog logs problems when they begin, and when they end.
package problemlog
