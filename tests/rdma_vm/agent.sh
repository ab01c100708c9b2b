#!/bin/busybox sh
# Runs commands that come over a virtio port, as many at a time as come (machine.py is the other end).
#   comes: ID COMMAND      the command in base64, on one line
#   goes:  ID p PID        it runs as this session
#          ID o LINE       a line of its standard output or error
#          ID e STATUS     it has ended, and its output, too
# Each line is one write of less than 32 KiB, which the port keeps in one piece. As the first line 0 says: ready.
for port in /sys/class/virtio-ports/*; do
  [ "$(cat "$port/name")" = agent ] && break
done
exec 3<> "/dev/${port##*/}"
cd /tmp || exit 1

run() {
  {
    setsid sh -c 'echo "$0 p $$" >&3; exec 3>&-; eval "$1"' "$1" "$2" < /dev/null 2>&1
    echo $? > "/run/$1"
  } | awk -v id="$1" '{ print id " o " $0; fflush() }' >&3
  read -r status < "/run/$1"
  rm "/run/$1"
  echo "$1 e $status" >&3
}

echo "0 e 0" >&3
while read -r id text <&3; do
  run "$id" "$(echo "$text" | base64 -d)" &
done
