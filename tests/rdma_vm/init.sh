#!/bin/busybox sh
# The first process of a machine: modules, network cards with Soft-RoCE, then the agent. The kernel's command line gives
# machine=N (1 or 2) and rails=N, the number of network cards.
busybox mount -t proc none /proc
busybox mount -t sysfs none /sys
busybox mount -t devtmpfs none /dev
busybox mkdir -p /dev/shm
busybox mount -t tmpfs none /dev/shm
busybox mount -t tmpfs none /tmp
export PATH=/bin:/sbin:/usr/bin HOME=/root
ulimit -l unlimited
for word in $(cat /proc/cmdline); do
  case $word in machine=*|rails=*) export "${word?}" ;; esac
done
while read -r module; do
  insmod "$module" || echo "init: $module could not be loaded"
done < /modules/order
hostname "machine-$machine"
/sbin/ip link set lo up
rail=0
while [ "$rail" -lt "$rails" ]; do
  nic "$rail" || echo "init: network card $rail could not be set up"
  rail=$((rail + 1))
done
agent
echo "init: the agent has ended"
poweroff -f
