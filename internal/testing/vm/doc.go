// Command vm runs a program on another Linux kernel: in a virtual machine of QEMU that has the
// files, the environment and the working directory of this machine. What the program writes to
// files stays in the memory of the virtual machine, which ends with the program. It is made for
//
//	go test -exec 'vm -kernel 6.1' ./backends/nftables
//
// so that the kernel is the only difference to "go test ./backends/nftables". Kernels are those
// of Debian's packages linux-image-amd64 (6.1 in Debian 12) and linux-image-6.12-amd64. vm
// downloads the package with apt-get and unpacks it into the user's cache folder; it installs
// nothing. It needs the programs apt-get, busybox (static), depmod, dpkg and
// qemu-system-x86_64, and no privileges. The program runs as root of the virtual machine.
//
// The kernel loads most modules when a program needs them. Others, such as br_netfilter, are
// loaded first if -modules names them.
//
// QEMU emulates the processor, so that programs take several times as long. The exit status is
// the exit status of the program, and 125 if the virtual machine could not run it.
package main
