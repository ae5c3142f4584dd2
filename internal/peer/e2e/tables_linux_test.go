package e2e_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// generation returns the number of a node's ruleset: any commit changes it.
func generation(t *testing.T, n *node) (number uint32) {
	t.Helper()
	err := n.ns.Do(func() error {
		conn, err := nfnetlink.Open()
		if err != nil {
			return err
		}
		number, err = conn.Generation(t.Context())
		_ = conn.Close() // An error does not matter.
		return err
	})
	testenv.NoError(t, err)
	return number
}

// listenToTables returns a socket with the notifications of changes in nf_tables of a namespace.
func listenToTables(ns *netns.NS) (socket *os.File, err error) {
	err = ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		socket = os.NewFile(uintptr(fd), "nf_tables")
		const room = 64 << 20 // More notifications would be lost.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
		return os.NewSyscallError("bind", err)
	})
	return socket, err
}

// wantNoRules checks that no rules of kube-proxy or of an agent remain. The kubelet has the chain
// KUBE-FIREWALL, too, and in the table mangle kube-proxy has an empty chain without a jump to it.
func (n *node) wantNoRules(t *testing.T, nft string) {
	t.Helper()
	table := ""
	for line := range strings.Lines(n.tables(nft)) {
		if strings.HasPrefix(line, "table ") {
			table = line
		}
		isOurs := strings.Contains(line, "KUBE-") || strings.Contains(line, "kube-proxy") || strings.Contains(line, "vipkit")
		if isOurs && !strings.Contains(line, "KUBE-FIREWALL") && !strings.Contains(table, " mangle ") {
			t.Errorf("rules of %s after a cleanup: got %sin %s, want none", n.name, line, table)
		}
	}
}
