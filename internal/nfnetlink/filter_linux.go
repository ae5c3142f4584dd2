package nfnetlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// accept is the verdict of a filter that lets a packet pass, however long it is.
const accept = 1 << 30

// monitorFilter writes a socket filter that passes the kernel's messages about commits
// that touch tables of certain names, unless the commit came by the socket own. The
// messages about one commit come in packets of several; a packet of more than the filter
// looks at passes. So does what it cannot read.
func monitorFilter(own uint32, tables []string) ([]unix.SockFilter, error) {
	look := lookAtMessage(tables)
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 4}, // nlmsg_pid
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: asLoaded32(own), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadConstant{Dst: bpf.RegX, Val: 0},
	}
	for len(program)+len(look) < unix.BPF_MAXINSNS {
		program = append(program, look...)
	}
	program = append(program, bpf.RetConstant{Val: accept})
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("filter of tables %q: %w", tables, err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return filter, nil
}

// lookAtMessage looks at the message at the place that register X holds, and moves X to
// the next one. Every message begins with a header of 20 bytes and the attribute that
// names its table, but for the one that tells the new generation.
func lookAtMessage(tables []string) []bpf.Instruction {
	const header, name = 20, 24
	p := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtLen},
		bpf.ALUOpX{Op: bpf.ALUOpSub},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: name, SkipTrue: 1},
		bpf.RetConstant{Val: 0}, // no further message
	}
	match := []bpf.Instruction{
		bpf.LoadIndirect{Off: header + 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: asLoaded16(unix.NFTA_TABLE_NAME), SkipTrue: 1},
		bpf.RetConstant{Val: accept},
	}
	for _, t := range tables {
		match = append(match, matchName(name, t)...)
	}
	p = append(p,
		bpf.LoadIndirect{Off: 4, Size: 2}, // nlmsg_type
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: asLoaded16(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN), SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(match))},
	)
	return append(append(p, match...), nextMessage()...)
}

// matchName passes a packet in which the name at a place of the message is that of a
// table.
func matchName(at uint32, table string) []bpf.Instruction {
	text := append([]byte(table), 0)
	var compare []bpf.Instruction
	for i := 0; i < len(text); {
		size, value := 1, uint32(text[i])
		if len(text)-i >= 4 {
			size, value = 4, binary.BigEndian.Uint32(text[i:])
		}
		compare = append(compare,
			bpf.LoadIndirect{Off: at + uint32(i), Size: size},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: 1},
			nil) // a jump behind all of this, whose distance is not known yet
		i += size
	}
	compare = append(compare, bpf.RetConstant{Val: accept})
	for i := range compare {
		if compare[i] == nil {
			compare[i] = bpf.Jump{Skip: uint32(len(compare) - i - 1)}
		}
	}
	return append([]bpf.Instruction{
		bpf.LoadIndirect{Off: at - 4, Size: 2}, // nla_len
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: asLoaded16(uint16(4 + len(text))), SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(compare))},
	}, compare...)
}

// nextMessage adds the length of a message to X. It is a number in the byte order of
// the host, and loads are in that of networks.
func nextMessage() []bpf.Instruction {
	high, middle, low := uint32(2), uint32(1), uint32(0)
	if asLoaded16(1) == 1 {
		high, middle, low = 0, 2, 3
	}
	return []bpf.Instruction{
		bpf.LoadIndirect{Off: high, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: accept}, // longer than any packet
		bpf.LoadIndirect{Off: middle, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftLeft, Val: 8},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.StoreScratch{Src: bpf.RegA, N: 0},
		bpf.LoadIndirect{Off: low, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 3}, // messages begin at multiples of four
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(3)},
		bpf.LoadScratch{Dst: bpf.RegX, N: 0},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{},
	}
}

// asLoaded16 gives the number that a filter loads where the kernel wrote v.
func asLoaded16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

func asLoaded32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}
