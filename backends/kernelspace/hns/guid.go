package hns

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// guid is a GUID as Windows keeps it in memory: of the five groups of its text, the first three are
// numbers with the lowest byte first.
type guid [16]byte

func parseGUID(text string) (*guid, error) {
	digits := strings.ReplaceAll(text, "-", "")
	b, err := hex.DecodeString(digits)
	if err != nil || len(b) != 16 || len(text) != 36 {
		return nil, fmt.Errorf("ID %q is no GUID", text)
	}
	g := guid(b)
	binary.LittleEndian.PutUint32(g[0:], binary.BigEndian.Uint32(b[0:]))
	binary.LittleEndian.PutUint16(g[4:], binary.BigEndian.Uint16(b[4:]))
	binary.LittleEndian.PutUint16(g[6:], binary.BigEndian.Uint16(b[6:]))
	return &g, nil
}
