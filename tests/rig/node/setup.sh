# Makes a node of this process, which is in a network, mount and UTS namespace of
# its own: its own /run, /opt and /var/lib, empty but for their usual folders, an
# /etc whose changes stay here, and the /sys of its network namespace. All of it is
# memory that goes with the last process of the node.
set -eu
echo "$1" >/proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 node /mnt
mkdir -p /mnt/run/netns /mnt/run/lock /mnt/opt/cni/bin /mnt/lib /mnt/etc /mnt/work

# What the tests add below /run/netns later appears here too, and goes from here.
mount --rbind /run/netns /mnt/run/netns
mount --rbind /mnt/run /run
mount --bind /mnt/opt /opt
mount --bind /mnt/lib /var/lib
mount -t overlay etc -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work /etc
mount -t sysfs sysfs /sys
umount --lazy /mnt

mkdir -p /etc/cni/net.d
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
exec sleep infinity
