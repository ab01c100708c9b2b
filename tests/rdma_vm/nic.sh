#!/bin/busybox sh
# nic RAIL: the network card, its address 10.7.RAIL.MACHINE and its Soft-RoCE device as after the start of the machine,
# whatever was done to them.
rail=$1 card=eth$1
/sbin/tc qdisc del dev "$card" root 2> /dev/null
/sbin/tc qdisc del dev "$card" clsact 2> /dev/null
/bin/rdma link delete "rxe$rail" 2> /dev/null
set -e
/sbin/ip link set "$card" mtu 4200 up          # the largest path MTU, 4096, and its headers
/sbin/ip address replace "10.7.$rail.$machine/24" dev "$card"
/bin/rdma link add "rxe$rail" type rxe netdev "$card"
