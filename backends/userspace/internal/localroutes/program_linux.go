package localroutes

import (
	"encoding/binary"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Registers of the program, which survive calls.
const (
	packet, family, chosen, outcome = asm.R6, asm.R7, asm.R8, asm.R9
)

// Fields of struct bpf_sk_lookup.
const (
	fieldFamily, fieldProtocol                                                           = 8, 12
	fieldRemote4, fieldRemote6, fieldLocal4, fieldLocal6, fieldLocalPort, fieldInterface = 16, 20, 40, 44, 60, 64
)

// Offsets on the stack: a frontendKey, which ends in an address, with a rangeKey that
// begins in its second word; and a slot.
const (
	atProtocol, atPort, atAddr, atSlot = -24, -20, -16, -28
)

// Results of the program.
const (
	resultRefuse, resultPass = 0, 1
)

// mapped returns the third word of an IPv4-mapped IPv6 address.
func mapped() int64 { return int64(int32(binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}))) }

// copyField copies a word of the packet's description to the stack.
func copyField(to, field int16) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, packet, field, asm.Word),
		asm.StoreMem(asm.RFP, to, asm.R2, asm.Word),
	}
}

// find looks up the key at an offset of the stack in a map.
func find(m *ebpf.Map, key int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
	}
}

// label names the first instruction, as a target of jumps.
func label(name string, code ...asm.Instruction) asm.Instructions {
	code[0] = code[0].WithSymbol(name)
	return code
}

// code returns the program, which the kernel runs for each new connection and each datagram to
// this host: a frontend has its action; other ports of an owned address are refused; node
// ports are frontends at the addresses that serve them; everything else passes to the node's
// sockets. With byInterface, the program reads the interface of the packet, which needs
// Linux 5.17.
func (l *lookup) code(byInterface bool) asm.Instructions {
	return slices.Concat(
		asm.Instructions{asm.Mov.Reg(packet, asm.R1)},
		copyField(atProtocol, fieldProtocol),
		copyField(atPort, fieldLocalPort),
		loadAddress(),
		label("look up", find(l.frontends, atProtocol)...),
		asm.Instructions{asm.JNE.Imm(asm.R0, 0, "found")},
		find(l.owned, atAddr),
		asm.Instructions{asm.JNE.Imm(asm.R0, 0, "refuse")},
		l.findNodePort(),
		label("found", asm.LoadMem(chosen, asm.R0, 0, asm.Word)),
		asm.Instructions{asm.JEq.Imm(chosen, int32(actionRefuse), "refuse")},
		chooseNode(byInterface),
		label("assign", asm.StoreMem(asm.RFP, atSlot, chosen, asm.Word)),
		find(l.sockets, atSlot),
		asm.Instructions{
			asm.JEq.Imm(asm.R0, 0, "refuse"),
			asm.Mov.Reg(chosen, asm.R0),
			asm.Mov.Reg(asm.R1, packet),
			asm.Mov.Reg(asm.R2, chosen),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnSkAssign.Call(),
			asm.Mov.Reg(outcome, asm.R0),
			asm.Mov.Reg(asm.R1, chosen),
			asm.FnSkRelease.Call(),
			asm.JNE.Imm(outcome, 0, "refuse"),
		},
		label("pass", asm.Mov.Imm(asm.R0, resultPass), asm.Return()),
		label("refuse", asm.Mov.Imm(asm.R0, resultRefuse), asm.Return()),
	)
}

// loadAddress copies the destination to the stack.
func loadAddress() asm.Instructions {
	code := asm.Instructions{
		asm.LoadMem(family, packet, fieldFamily, asm.Word),
		asm.JEq.Imm(family, unix.AF_INET, "IPv4"),
	}
	for i := range int16(4) {
		code = append(code, copyField(atAddr+4*i, fieldLocal6+4*i)...)
	}
	return slices.Concat(code,
		asm.Instructions{asm.Ja.Label("look up")},
		label("IPv4", asm.StoreImm(asm.RFP, atAddr, 0, asm.Word)),
		asm.Instructions{
			asm.StoreImm(asm.RFP, atAddr+4, 0, asm.Word),
			asm.StoreImm(asm.RFP, atAddr+8, mapped(), asm.Word),
		},
		copyField(atAddr+12, fieldLocal4),
	)
}

// chooseNode assigns packets from the node to the listener for the node: those that arrive by
// lo, whose number is 1, and those whose source is their destination. (For packets that the
// node sends to its own addresses, the interface is the one that has the address.)
func chooseNode(byInterface bool) asm.Instructions {
	code := asm.Instructions{asm.JGE.Imm(chosen, int32(slotDrop), "assign")}
	if byInterface {
		code = append(code,
			asm.LoadMem(asm.R2, packet, fieldInterface, asm.Word),
			asm.JEq.Imm(asm.R2, 1, "node"))
	}
	code = append(code, asm.JNE.Imm(family, unix.AF_INET, "from IPv6"))
	code = append(code, equalFields(fieldRemote4, fieldLocal4)...)
	code = append(code, asm.Ja.Label("node"))
	six := equalFields(fieldRemote6, fieldLocal6)
	for i := int16(4); i < 16; i += 4 {
		six = append(six, equalFields(fieldRemote6+i, fieldLocal6+i)...)
	}
	return slices.Concat(code, label("from IPv6", six...), label("node", asm.Add.Imm(chosen, int32(slotNode-slotOthers))))
}

// equalFields continues if two fields are equal, and jumps to "assign" if they are not.
func equalFields(one, other int16) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, packet, one, asm.Word),
		asm.LoadMem(asm.R3, packet, other, asm.Word),
		asm.JNE.Reg(asm.R2, asm.R3, "assign"),
	}
}

// findNodePort continues if the destination is a node port, and jumps to "pass" if it is not.
func (l *lookup) findNodePort() asm.Instructions {
	code := slices.Concat(
		asm.Instructions{asm.StoreImm(asm.RFP, atPort, 128, asm.Word)}, // all bits of the address
		find(l.nodePorts, atPort),
		asm.Instructions{
			asm.JEq.Imm(asm.R0, 0, "pass"),
			asm.LoadMem(asm.R2, asm.R0, 0, asm.Word),
			asm.JEq.Imm(asm.R2, 0, "pass"),
		},
		copyField(atPort, fieldLocalPort),
	)
	for i := range int16(4) {
		code = append(code, asm.StoreImm(asm.RFP, atAddr+4*i, 0, asm.Word))
	}
	return slices.Concat(code,
		asm.Instructions{
			asm.JNE.Imm(family, unix.AF_INET, "node port"),
			asm.StoreImm(asm.RFP, atAddr+8, mapped(), asm.Word),
		},
		label("node port", find(l.frontends, atProtocol)...),
		asm.Instructions{asm.JEq.Imm(asm.R0, 0, "pass")},
	)
}
