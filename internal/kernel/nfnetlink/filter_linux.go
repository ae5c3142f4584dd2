package nfnetlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// accept is the verdict of a filter that lets a packet pass, however long it is.
const accept = 1 << 30

// monitorFilter writes a socket filter of at most size instructions. It passes packets
// with a message about a table of one of the names, unless the socket with port ID own made
// the commit. A packet has several messages; one with more messages than the filter can
// check passes, and so does one that it cannot parse.
func monitorFilter(own uint32, tables []string, size int) ([]unix.SockFilter, error) {
	check := checkMessage(tables)
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 12, Size: 4}, // nlmsg_pid
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: asLoaded32(own), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadConstant{Dst: bpf.RegX, Val: 0},
	}
	for len(program)+len(check) < size {
		program = append(program, check...)
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

// checkMessage checks the message at the offset in register X, and moves X to the next
// one. Every message begins with a header of 20 bytes and the attribute that names its
// table; a message about a new generation has the number of the generation there.
func checkMessage(tables []string) []bpf.Instruction {
	const header, name = 20, 24
	p := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtLen},
		bpf.ALUOpX{Op: bpf.ALUOpSub},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: name + 4, SkipTrue: 1},
		bpf.RetConstant{Val: 0}, // no further message
		bpf.LoadIndirect{Off: header + 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: asLoaded16(unix.NFTA_TABLE_NAME), SkipTrue: 1},
		bpf.RetConstant{Val: accept},
	}
	for _, t := range tables {
		p = append(p, matchName(name, t)...)
	}
	return append(p, nextMessage()...)
}

// matchName passes a packet that has the name of a table at an offset of the message. The
// kernel ends a name with a zero, and pads it with zeros to a multiple of four bytes.
func matchName(at uint32, table string) []bpf.Instruction {
	text := append([]byte(table), make([]byte, 4-len(table)%4)...)
	var compare []bpf.Instruction
	for i := 0; i < len(text); i += 4 {
		behind := uint8(2 * (len(text) - i) / 4)
		compare = append(compare,
			bpf.LoadIndirect{Off: at + uint32(i), Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(text[i:]), SkipFalse: behind - 1})
	}
	return append(compare, bpf.RetConstant{Val: accept})
}

// nextMessage adds the length of a message to X. The length is in host byte order, and
// filters load numbers in network byte order.
func nextMessage() []bpf.Instruction {
	add := func(shift, mask uint32) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadScratch{Dst: bpf.RegA, N: 0},
			bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: shift},
			bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
			bpf.ALUOpX{Op: bpf.ALUOpAdd},
			bpf.TAX{},
		}
	}
	p := []bpf.Instruction{
		bpf.LoadIndirect{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: asLoaded32(0xffff0000), SkipTrue: 1},
		bpf.RetConstant{Val: accept}, // longer than any packet
		bpf.StoreScratch{Src: bpf.RegA, N: 0},
	}
	if asLoaded16(1) == 1 {
		p = append(p, add(0, 0xffff)...)
	} else {
		p = append(append(p, add(24, 0xff)...), add(8, 0xff00)...)
	}
	return append(p, // messages begin at multiples of four
		bpf.TXA{},
		bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 3},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: ^uint32(3)},
		bpf.TAX{})
}

// asLoaded16 returns the number that a filter loads if the kernel wrote v.
func asLoaded16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

func asLoaded32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}
