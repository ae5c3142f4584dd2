#!/bin/sh
# The first process of the virtual machine. It takes the files of the host read-only, lays a
# file system in memory over them, and runs the job there.
b=/bin/busybox
export PATH=/bin:/sbin
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in virtio_pci 9pnet_virtio 9p overlay; do
	$b modprobe $module
done
fail() {
	echo "$1" >/dev/console
	$b poweroff -f
}
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=1048576 host /host || fail 'no files of the host'
$b mount -t tmpfs tmpfs /memory
$b mkdir /memory/upper /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /new || fail 'no overlay'
# shellcheck source=/dev/null
. /release
$b mkdir -p /new/lib/modules
$b mount -t tmpfs tmpfs /new/lib/modules
$b ln -s "$modules" "/new/lib/modules/$release"
$b cp /job /new/job
for folder in proc sys dev; do
	$b mount --move /$folder /new/$folder
done
$b ln -s /proc/self/fd /new/dev/fd
$b mount -t tmpfs tmpfs /new/run
# As many descriptors as systemd lets a service have: the kernel's own limit is 4,096, with which
# backends/userspace serves few connections at once.
ulimit -n 524288
exec $b switch_root /new /bin/sh /job
