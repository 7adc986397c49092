# Makes a machine of this process, which is the first of a PID namespace and in a
# network, mount, UTS and IPC namespace of its own: its own /run, /opt, /var/lib and
# /var/log, empty but for their usual folders, an /etc whose changes stay here, and
# the /proc and /sys of its namespaces. All of it is memory that goes with the last
# process. The cgroups are the machine's.
set -eu
echo "$1" >/proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 node /mnt
mkdir -p /mnt/run/netns /mnt/run/lock /mnt/opt/cni/bin /mnt/lib /mnt/log /mnt/etc /mnt/work /mnt/cgroup /mnt/sysctl

mount --rbind /sys/fs/cgroup /mnt/cgroup
mount -t sysfs sysfs /sys
mount --rbind /mnt/cgroup /sys/fs/cgroup
mount -t proc proc /proc
mount --bind /mnt/run /run
mount --bind /mnt/opt /opt
mount --bind /mnt/lib /var/lib
mount --bind /mnt/log /var/log
mount -t overlay etc -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work /etc

# The kubelet starts with these values only. They are the whole machine's, which
# keeps its own.
sysctl() {
	echo "$2" >"/mnt/sysctl/${1##*/}"
	mount --bind "/mnt/sysctl/${1##*/}" "/proc/sys/$1"
}
sysctl vm/overcommit_memory 1
sysctl vm/panic_on_oom 0
sysctl kernel/panic 10
sysctl kernel/panic_on_oops 1
umount --lazy /mnt

# What containers mount is to be seen by others, as on any machine of systemd.
mount --make-rshared /
mkdir -p /etc/cni/net.d
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
exec "$2"
