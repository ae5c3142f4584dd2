package main

// report is what is printed. Times are in milliseconds or microseconds, as the
// names say.
type report struct {
	options
	// LoadMs is from the first API object to the snapshot, ColdMs from the
	// snapshot to the kernel.
	LoadMs float64 `json:"loadMs"`
	ColdMs float64 `json:"coldMs"`
	// From the API object to the kernel: one endpoint replaced, one endpoint
	// more or less, a thousand services changed at once.
	ChangeP50Us  float64 `json:"changeP50Us"`
	ChangeP99Us  float64 `json:"changeP99Us"`
	ScaleP50Us   float64 `json:"scaleP50Us"`
	BurstMs      float64 `json:"burstMs"`
	OpsPerChange float64 `json:"opsPerChange"`
	RSSMiB       float64 `json:"rssMiB"`
	// Elements are counted back from the kernel: of sets and maps, or rules of
	// iptables.
	Elements int `json:"elements"`
	restartReport
	floorReport
}

// restartReport is of a fresh process that finds the world as it is.
type restartReport struct {
	RestartMs  float64 `json:"restartMs"`
	RestartOps uint64  `json:"restartOps"`
}

// floorReport is of the bare netlink transactions with the same elements.
type floorReport struct {
	FloorColdMs      float64 `json:"floorColdMs,omitempty"`
	FloorChangeP50Us float64 `json:"floorChangeP50Us,omitempty"`
	FloorChangeP99Us float64 `json:"floorChangeP99Us,omitempty"`
}
