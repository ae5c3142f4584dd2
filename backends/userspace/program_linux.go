package userspace

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// instruction is one of BPF, as the kernel reads it.
type instruction struct {
	code      uint8
	registers uint8 // see of
	offset    int16
	immediate int32
}

// Registers. Those from keep on survive calls.
const (
	regResult, regFirst, regSecond, regThird    = 0, 1, 2, 3
	regPacket, regFamily, regChosen, regOutcome = 6, 7, 8, 9
	regFrame                                    = 10
)

// Functions of the kernel.
const (
	callFind, callRelease, callAssign = 1, 86, 124
)

// Fields of struct bpf_sk_lookup.
const (
	fieldFamily, fieldProtocol                                                           = 8, 12
	fieldRemote4, fieldRemote6, fieldLocal4, fieldLocal6, fieldLocalPort, fieldInterface = 16, 20, 40, 44, 60, 64
)

// assembler writes a program. Jumps name labels that come later.
type assembler struct {
	code   []instruction
	jumps  map[string][]int
	labels map[string]int
}

// of gives the registers of an instruction in a byte: the destination stands in the
// half that the machine counts as first.
func of(destination, source uint8) uint8 {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return destination<<4 | source
	}
	return source<<4 | destination
}

func (a *assembler) emit(code, registers uint8, offset int16, immediate int32) {
	a.code = append(a.code, instruction{code, registers, offset, immediate})
}

func (a *assembler) load(to, from uint8, offset int16) {
	a.emit(unix.BPF_LDX|unix.BPF_MEM|unix.BPF_W, of(to, from), offset, 0)
}

func (a *assembler) store(offset int16, from uint8) {
	a.emit(unix.BPF_STX|unix.BPF_MEM|unix.BPF_W, of(regFrame, from), offset, 0)
}

func (a *assembler) storeConst(offset int16, n uint32) {
	a.emit(unix.BPF_ST|unix.BPF_MEM|unix.BPF_W, of(regFrame, 0), offset, int32(n))
}

func (a *assembler) move(to, from uint8) {
	a.emit(unix.BPF_ALU64|unix.BPF_MOV|unix.BPF_X, of(to, from), 0, 0)
}

func (a *assembler) set(to uint8, n int32) {
	a.emit(unix.BPF_ALU64|unix.BPF_MOV|unix.BPF_K, of(to, 0), 0, n)
}

func (a *assembler) call(function int32) { a.emit(unix.BPF_JMP|unix.BPF_CALL, of(0, 0), 0, function) }

// jump goes to a label where a register is (unix.BPF_JEQ) or is not (BPF_JNE) n.
func (a *assembler) jump(op uint8, register uint8, n int32, label string) {
	a.jumps[label] = append(a.jumps[label], len(a.code))
	a.emit(unix.BPF_JMP|op|unix.BPF_K, of(register, 0), 0, n)
}

func (a *assembler) label(name string) { a.labels[name] = len(a.code) }

func (a *assembler) end(n int32) {
	a.set(regResult, n)
	a.emit(unix.BPF_JMP|unix.BPF_EXIT, of(0, 0), 0, 0)
}

// find looks what stands on the stack up in a map.
func (a *assembler) find(table int, key int32) {
	a.emit(unix.BPF_LD|unix.BPF_IMM|unix.BPF_DW, of(regFirst, unix.BPF_PSEUDO_MAP_FD), 0, int32(table))
	a.emit(0, of(0, 0), 0, 0)
	a.move(regSecond, regFrame)
	a.emit(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_K, of(regSecond, 0), 0, key)
	a.call(callFind)
}

func (a *assembler) program() []instruction {
	for label, jumps := range a.jumps {
		for _, at := range jumps {
			a.code[at].offset = int16(a.labels[label] - at - 1)
		}
	}
	return a.code
}

// Places on the stack: a key of the map of frontends, which ends in an address, with
// a key of the ranges of node ports over it; and the slot of a socket.
const (
	atProtocol, atPort, atAddr, atSlot = -24, -20, -16, -28
)

// mapped begins an IPv4 address within IPv6, in its third word.
func mapped() uint32 { return binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff}) }

// code is what the kernel does for each connection and datagram that comes to this
// host: a frontend has its verdict; all else at an owned address is refused; node
// ports count at the addresses that serve them; the rest is nobody's business. Only
// since Linux 5.17 can it tell interfaces.
func (l *lookup) code(byInterface bool) []instruction {
	a := &assembler{jumps: map[string][]int{}, labels: map[string]int{}}
	const refuse, pass = 0, 1
	a.move(regPacket, regFirst)
	a.load(regSecond, regPacket, fieldProtocol)
	a.store(atProtocol, regSecond)
	a.load(regSecond, regPacket, fieldLocalPort)
	a.store(atPort, regSecond)
	a.load(regFamily, regPacket, fieldFamily)
	a.jump(unix.BPF_JEQ, regFamily, unix.AF_INET, "four")
	for i := range int16(4) {
		a.load(regSecond, regPacket, fieldLocal6+4*i)
		a.store(atAddr+4*i, regSecond)
	}
	a.jump(unix.BPF_JNE, regFamily, unix.AF_INET, "look")
	a.label("four")
	a.storeConst(atAddr, 0)
	a.storeConst(atAddr+4, 0)
	a.storeConst(atAddr+8, mapped())
	a.load(regSecond, regPacket, fieldLocal4)
	a.store(atAddr+12, regSecond)
	a.label("look")
	a.find(l.frontends, atProtocol)
	a.jump(unix.BPF_JNE, regResult, 0, "verdict")
	a.find(l.owned, atAddr)
	a.jump(unix.BPF_JNE, regResult, 0, "refuse")
	a.findNodePort(l)
	a.label("verdict")
	a.load(regChosen, regResult, 0)
	a.jump(unix.BPF_JEQ, regChosen, verdictRefuse, "refuse")
	a.tellNode(byInterface)
	a.store(atSlot, regChosen)
	a.find(l.sockets, atSlot)
	a.jump(unix.BPF_JEQ, regResult, 0, "refuse")
	a.move(regChosen, regResult)
	a.move(regFirst, regPacket)
	a.move(regSecond, regChosen)
	a.set(regThird, 0)
	a.call(callAssign)
	a.move(regOutcome, regResult)
	a.move(regFirst, regChosen)
	a.call(callRelease)
	a.jump(unix.BPF_JNE, regOutcome, 0, "refuse")
	a.label("pass")
	a.end(pass)
	a.label("refuse")
	a.end(refuse)
	return a.program()
}

// tellNode gives what the node has sent to the sockets for that: what comes in by
// lo, whose number is 1, or from the very address that it goes to. (To its own
// addresses the node seems to send by the interface that has them.)
func (a *assembler) tellNode(byInterface bool) {
	a.jump(unix.BPF_JGE, regChosen, slotSink, "socket")
	if byInterface {
		a.load(regSecond, regPacket, fieldInterface)
		a.jump(unix.BPF_JEQ, regSecond, 1, "node")
	}
	a.jump(unix.BPF_JNE, regFamily, unix.AF_INET, "six")
	a.sameWord(fieldRemote4, fieldLocal4)
	a.jump(unix.BPF_JEQ, regFamily, unix.AF_INET, "node")
	a.label("six")
	for i := range int16(4) {
		a.sameWord(fieldRemote6+4*i, fieldLocal6+4*i)
	}
	a.label("node")
	a.emit(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_K, of(regChosen, 0), 0, slotNode-slotDoor)
	a.label("socket")
}

// sameWord goes on if two fields are equal.
func (a *assembler) sameWord(one, other int16) {
	a.load(regSecond, regPacket, one)
	a.load(regThird, regPacket, other)
	a.jumps["socket"] = append(a.jumps["socket"], len(a.code))
	a.emit(unix.BPF_JMP|unix.BPF_JNE|unix.BPF_X, of(regSecond, regThird), 0, 0)
}

// findNodePort goes on if the destination is a node port.
func (a *assembler) findNodePort(l *lookup) {
	a.storeConst(atPort, 128) // the longest range that holds all of the address
	a.find(l.nodePorts, atPort)
	a.jump(unix.BPF_JEQ, regResult, 0, "pass")
	a.load(regSecond, regResult, 0)
	a.jump(unix.BPF_JEQ, regSecond, 0, "pass")
	a.load(regSecond, regPacket, fieldLocalPort)
	a.store(atPort, regSecond)
	for i := range int16(4) {
		a.storeConst(atAddr+4*i, 0)
	}
	a.jump(unix.BPF_JNE, regFamily, unix.AF_INET, "any")
	a.storeConst(atAddr+8, mapped())
	a.label("any")
	a.find(l.frontends, atProtocol)
	a.jump(unix.BPF_JEQ, regResult, 0, "pass")
}
