//go:build !linux

package engine

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// poller is nothing here: package net has one.
type poller struct{}

// Close does nothing.
func (p *poller) Close() error { return nil }

// Listener gives l.
func (e *Engine) Listener(l *net.TCPListener) (net.Listener, error) { return l, nil }

func (e *Engine) await(context.Context, int, netip.AddrPort, time.Duration) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

func defaultBegin() func(Dial) (int, error) { return nil }

func (e *Engine) burstOf(l *link, to, from net.Conn) func() error { return e.burstConns(l, to, from) }

// converse leaves everything to two goroutines.
func (e *Engine) converse(*link, *[2]way) error { return nil }

func (e *Engine) own(c net.Conn) net.Conn { return c }
